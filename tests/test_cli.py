"""The command line: one-line errors, exit codes, nearest names, and what each command prints."""
import json

import pytest

from rrlforge import cli


def call(capsys, *words):
    code = cli.main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("words,message", [
    (["train", "--group-sise", "8"], "unknown option --group-sise: did you mean --group-size?"),
    (["train", "--zzz"], "unknown option --zzz: see rrlforge train --help"),
    (["train", "--group-size", "1"], "group_size is 1: outside [2, 256]"),
    (["train", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
    (["train", "--resume"], "--resume needs --out FOLDER"),
    (["train", "--model", "no/such/folder", "--task", "arith"], "no folder no/such/folder"),
    (["train", "--model", "tiny", "--data", "x"], "leave out data"),
    (["eval", "--samples", "0"], "at least 0 and 1"),
    (["eval", "--problems", "2", "--samples", "3"], "same 3 times"),
    (["record", "train/nothing"], "known are train/tiny"),
    (["trian"], "invalid choice: 'trian'"),
    ([], "required: command"),
])
def test_a_mistake_is_one_line_and_exit_code_two(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rrlforge.models.tiny_folder", lambda *_: tmp_path)  # none of these may need the model's weights
    code, out, err = call(capsys, *words)
    assert code == 2 and out == ""
    assert err.startswith("rrlforge: ") and err.count("\n") == 1 and message in err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_script_prints_forge_as_it_stands(capsys):
    from pathlib import Path

    from rrlforge import forge

    code, out, _ = call(capsys, "script")
    assert code == 0 and out == Path(forge.__file__).read_text("utf8")
    compile(out, "forge.py", "exec")


def test_record_without_a_name_lists_the_recipes(capsys):
    code, out, _ = call(capsys, "record")
    assert code == 0 and "train/tiny" in out


@pytest.mark.slow
def test_train_then_eval_of_the_run_uses_its_task_and_saves_the_protocol(capsys, tmp_path):
    out = tmp_path / "run"
    code, printed, _ = call(capsys, "train", "--out", str(out), "--steps", "2", "--prompts-per-step", "2", "--group-size", "2",
                            "--eval-problems", "4", "--seed", "3")
    assert code == 0 and "held-out greedy" in printed and (out / "curve.png").stat().st_size > 10_000
    code, printed, _ = call(capsys, "eval", "--model", str(out / "model"), "--problems", "4", "--samples", "2",
                            "--temperature", "1", "--out", str(tmp_path / "s.json"))
    assert code == 0 and "arith test" in printed and "pass@2" in printed
    saved = json.loads((tmp_path / "s.json").read_text())
    assert saved["protocol"]["task"] == "arith" and saved["protocol"]["n"] == 2 and len(saved["right"]) == 4
