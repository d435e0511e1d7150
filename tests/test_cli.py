"""The command line: one-line errors, exit codes, nearest names, and what each command prints."""
import json

import pytest
import torch
from safetensors.torch import save_file

from rrlforge import cli
from rrlforge.errors import ForgeError


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
    (["train", "--model", "no/such/folder", "--task", "arith"], "no folder 'no/such/folder'"),
    (["train", "--model", "tiny", "--data", "x"], "leave out data"),
    (["eval", "--samples", "0"], "at least 0 and 1"),
    (["eval", "--max-new-tokens", "-1"], "--max-new-tokens -1: at least 0"),
    (["eval", "--model", "no/such/folder"], "no folder 'no/such/folder'"),
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


class Loaded(Exception):
    """Stands where the model would be loaded: what was asked for is in `args`."""


@pytest.fixture
def loaded(monkeypatch):
    """`eval` up to the loading of its model: returns (options of the command) -> what would be loaded."""
    from rrlforge import engines

    def stop(model, problems, task, limit, *_):
        raise Loaded(task, limit)

    def run(*words):
        with pytest.raises(Loaded) as caught:
            cli.main(["eval", *words])
        return caught.value.args

    monkeypatch.setattr(engines, "standalone", stop)
    return run


@pytest.fixture
def trained(tmp_path):
    """A run on GSM8K from a folder of its own, with its settings and a model's files."""
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text(json.dumps({"question": f"{split}?", "answer": "#### 1"}))
    settings = {"model": "some/model", "task": "gsm8k", "data": str(data), "max_new_tokens": 77}
    (run / "model").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"settings": settings}))
    (run / "metrics.jsonl").touch()
    (run / "model" / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(1)}, run / "model" / "model.safetensors")
    return run


def test_eval_of_a_runs_model_takes_the_runs_own_task_data_and_length_and_says_so(trained, loaded, capsys, monkeypatch):
    task, limit = loaded("--model", str(trained / "model"))
    assert (task.name, limit) == ("gsm8k", 77) and task.test[0].question == "test?"
    taken = f"--task gsm8k, --data {trained.parent / 'data'}, --max-new-tokens 77"
    assert capsys.readouterr().out == f"from the run run: {taken}\n"
    monkeypatch.chdir(trained / "model")
    assert loaded("--model", ".")[1] == 77


def test_what_eval_is_given_goes_before_what_the_run_has(trained, loaded, capsys, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for split in ("train", "test"):
        (other / f"{split}.jsonl").write_text(json.dumps({"question": "other?", "answer": "#### 1"}))
    task, limit = loaded("--model", str(trained / "model"), "--data", str(other), "--max-new-tokens", "9")
    assert (task.test[0].question, limit) == ("other?", 9)
    assert capsys.readouterr().out == "from the run run: --task gsm8k\n"
    task, limit = loaded("--model", str(trained / "model"), "--task", "arith")
    assert (task.name, limit) == ("arith", task.max_new_tokens) and capsys.readouterr().out == ""


def test_eval_of_another_model_takes_nothing(trained, loaded, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("rrlforge.models.tiny_folder", lambda *_: tmp_path)
    task, limit = loaded("--model", "tiny")
    assert task.name == "arith" and limit == task.max_new_tokens and capsys.readouterr().out == ""


def test_data_of_a_run_that_are_gone_are_said_to_be_the_runs(trained, capsys):
    (trained.parent / "data").rename(trained.parent / "elsewhere")
    code, out, err = call(capsys, "eval", "--model", str(trained / "model"))
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "GSM8K: no folder" in err and "from the run run" in err


@pytest.mark.parametrize("model", ["no/such/folder", "some/model"])
def test_a_model_that_is_not_there_is_named_before_the_task_is_loaded(model, capsys, monkeypatch, tmp_path):
    from rrlforge import tasks

    def download(repo, kind, patterns):
        raise ForgeError(f"the hub has no {kind} {repo}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "download", download)
    monkeypatch.setattr(tasks, "load_task", lambda *_: pytest.fail("the task was loaded"))
    code, _, err = call(capsys, "eval", "--model", model)
    assert code == 2 and model in err


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
