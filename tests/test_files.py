"""Files that are replaced: whole or not at all, and on disk before they are renamed."""
import math
import os

import pytest

from rrlforge import evaluate, files, records, report


def test_the_data_is_on_disk_before_the_rename_and_the_name_after_it(tmp_path, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b)))
    path = files.write_atomically(tmp_path / "a.txt", "答案")
    assert done == ["a.txt.part", "rename", tmp_path.name]
    assert path.read_bytes() == "答案".encode()


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path, monkeypatch, fails):
    path = files.write_atomically(tmp_path / "a.bin", b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", {"loss": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [records, evaluate, report], ids=lambda m: m.__name__)
def test_records_scores_and_pictures_are_written_so(module, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(os, "fsync", written.append)
    if module is records:
        origin = records.origin("card", "tiny", "arith", "rrlforge record x")
        records.save("x", {"figures": {}, "series": {}, "origin": origin}, tmp_path)
    elif module is evaluate:
        evaluate.Score(0.5, 0.1, 0.9, 0.0, 3.0, 1, [1, 0], {}).save(tmp_path / "s.json")
    else:
        from matplotlib.figure import Figure

        report._write(Figure(), tmp_path / "curve.png")
    assert len(written) == 2 and len(list(tmp_path.iterdir())) == 1
