"""Measured records: saved whole, loaded strictly, shown with their origin."""

import json
import math

import pytest

from rrlforge import records
from rrlforge.course import find_root
from rrlforge.errors import ForgeError

RECORD = {
    "figures": {"tok_s": 11600},
    "series": {"reward": [0.1, 0.5]},
    "origin": records.origin("NVIDIA H200", "tiny", "arith", "rrlforge record demo", memory_cap="31.4 GiB"),
}


def test_saved_record_loads_equal_and_nothing_lies_beside_it(tmp_path):
    path = records.save("l2-4/demo", RECORD, tmp_path)
    assert path == tmp_path / "l2-4" / "demo.json"
    assert records.load("l2-4/demo", tmp_path) == RECORD
    assert [p.name for p in path.parent.iterdir()] == ["demo.json"]


@pytest.mark.parametrize("name", ["../evil", "a/b/c", "", "/abs", "a b", ".hidden", "x/../y"])
def test_name_that_leaves_the_folder_is_refused(name, tmp_path):
    with pytest.raises(ForgeError, match="at most one '/'"):
        records.save(name, RECORD, tmp_path)


def test_absent_record_says_how_to_measure_it(tmp_path):
    with pytest.raises(ForgeError, match=r"none\.json: no such record.*rrlforge record none"):
        records.load("none", tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not JSON"),
        ("[]", "everything"),
        ('{"figures": {}}', "series, origin"),
        (json.dumps(RECORD | {"origin": {"device": "x"}}), "lacks memory_cap, versions"),
    ],
)
def test_broken_record_is_named_in_one_line(text, message, tmp_path):
    (tmp_path / "bad.json").write_text(text, "utf8")
    with pytest.raises(ForgeError, match=message) as error:
        records.load("bad", tmp_path)
    assert "bad.json" in str(error.value) and "\n" not in str(error.value)


def test_failed_save_keeps_the_old_record(tmp_path):
    records.save("demo", RECORD, tmp_path)
    with pytest.raises(ValueError):
        records.save("demo", RECORD | {"figures": {"loss": math.nan}}, tmp_path)
    with pytest.raises(ForgeError, match="series"):
        records.save("demo", {"figures": {}, "origin": {}}, tmp_path)
    assert records.load("demo", tmp_path) == RECORD


def test_origin_names_versions_date_and_commit():
    assert set(RECORD["origin"]) == set(records.ORIGIN)
    assert {"python", "torch", "transformers"} <= set(RECORD["origin"]["versions"])
    assert len(RECORD["origin"]["date"]) == 10


def test_caption_holds_every_part_of_the_origin():
    line = records.origin_line(RECORD)
    for part in (
        "NVIDIA H200",
        "31.4 GiB",
        "tiny",
        "arith",
        "rrlforge record demo",
        RECORD["origin"]["date"],
        "torch",
    ):
        assert part in line
    no_cap = records.origin_line(RECORD | {"origin": RECORD["origin"] | {"memory_cap": ""}})
    assert "显存上限" not in no_cap


def test_every_record_of_the_book_loads():
    folder = find_root() / "book" / "records"
    for path in folder.rglob("*.json"):
        records.load(path.relative_to(folder).with_suffix("").as_posix())
