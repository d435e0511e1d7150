"""A run's folder: locks, checkpoints, cut lines, and going on after kill -9 with the same losses."""
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from toy import toy_model

from rrlforge.config import GRPOConfig
from rrlforge.errors import ForgeError
from rrlforge import runs
from rrlforge.runs import Run, load_config, load_metrics, read_lines


def new(folder, **settings):
    run = Run(folder, GRPOConfig(**settings))
    run.begin()
    return run


def trained(seed=0):
    model = toy_model(seed, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        model(input_ids=torch.tensor([[3, 4, 5]])).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_a_checkpoint_restores_weights_and_optimiser_exactly(tmp_path):
    model, optimizer = trained()
    new(tmp_path / "r").save(3, model, optimizer)
    other = toy_model(5, dtype=torch.float32)
    empty = torch.optim.AdamW(other.parameters(), lr=1e-2)
    assert Run(tmp_path / "r", GRPOConfig(), resume=True).restore(other, empty) == 3
    for (m, o) in ((model, optimizer), (other, empty)):  # the next step must be the same too
        m(input_ids=torch.tensor([[6, 7, 8]])).logits.square().mean().backward()
        o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_only_the_last_two_checkpoints_stay_and_the_newest_is_loaded(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    for step in (10, 20, 30):
        run.save(step, model, optimizer)
    assert sorted(p.name for p in (tmp_path / "r" / "checkpoints").iterdir()) == ["step-000020", "step-000030"]
    assert run.restore(model, optimizer) == 30


def test_a_half_written_checkpoint_is_not_seen(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(10, model, optimizer)
    half = tmp_path / "r" / "checkpoints" / ".step-000020.part"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert run.restore(model, optimizer) == 10


def test_a_corrupted_checkpoint_is_named_and_nothing_is_overwritten(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(10, model, optimizer)
    file = tmp_path / "r" / "checkpoints" / "step-000010" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ForgeError, match="step-000010 cannot be read"):
        run.restore(model, optimizer)
    assert file.exists()


def test_a_folder_with_a_run_is_refused_and_a_second_process_too(tmp_path):
    run = new(tmp_path / "r")
    with pytest.raises(ForgeError, match="already holds a run"):
        Run(tmp_path / "r", GRPOConfig())
    with pytest.raises(ForgeError, match="in use by another process"):
        Run(tmp_path / "r", GRPOConfig(), resume=True)
    run.close()
    Run(tmp_path / "r", GRPOConfig(), resume=True)


def test_a_run_left_by_an_error_closes_its_engine_and_gives_up_its_lock(tmp_path):
    class Engine:
        closed = 0

        def close(self):
            assert (tmp_path / "r" / ".lock").exists()
            Engine.closed += 1

    with pytest.raises(KeyboardInterrupt), Run(tmp_path / "r", GRPOConfig()) as run:
        run.closing(Engine())
        run.begin()
        raise KeyboardInterrupt
    assert Engine.closed == 1
    Run(tmp_path / "r", GRPOConfig(), resume=True).close()  # not "in use by another process"


def test_an_unknown_reward_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ForgeError, match="correct"):
        Run(tmp_path / "r", GRPOConfig(rewards="corect=1"))
    assert not (tmp_path / "r").exists()


def test_resuming_nothing_or_with_other_settings_is_refused(tmp_path):
    with pytest.raises(ForgeError, match="holds no run to resume"):
        Run(tmp_path / "none", GRPOConfig(), resume=True)
    new(tmp_path / "r", lr=1e-4).close()
    with pytest.raises(ForgeError, match="started with lr=0.0001, not 0.1"):
        Run(tmp_path / "r", GRPOConfig(lr=0.1), resume=True)
    with pytest.raises(ForgeError, match="started with steps=80, not 90"):  # the decay of the rate depends on it
        Run(tmp_path / "r", GRPOConfig(lr=1e-4, steps=90), resume=True)
    Run(tmp_path / "r", GRPOConfig(lr=1e-4, eval_every=4), resume=True)
    assert load_config(tmp_path / "r").lr == 1e-4


def test_a_run_without_decay_may_be_made_longer_not_shorter(tmp_path):
    new(tmp_path / "r", lr_end=1.0, steps=8).close()
    Run(tmp_path / "r", GRPOConfig(lr_end=1.0, steps=12), resume=True).close()
    with pytest.raises(ForgeError, match="started with steps=8, not 4"):
        Run(tmp_path / "r", GRPOConfig(lr_end=1.0, steps=4), resume=True)


def test_lines_after_the_checkpoint_are_cut_and_a_torn_last_line_is_left_out(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    for step in range(5):
        run.append("metrics", {"step": step, "loss": float("nan")})
    run.append("eval", {"step": 0})
    run.append("eval", {"step": 3})
    run.append("eval", {"step": 5})
    with (tmp_path / "r" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert [m["step"] for m in load_metrics(tmp_path / "r")] == [0, 1, 2, 3, 4]
    run.save(3, model, optimizer)
    run.restore(model, optimizer)
    assert load_metrics(tmp_path / "r") == [{"step": s, "loss": None} for s in range(3)]
    assert [e["step"] for e in read_lines(tmp_path / "r" / "eval.jsonl")] == [0, 3]


def test_a_line_cut_within_a_character_is_left_out_too(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_bytes('{"step": 0, "question": "小明"}\n'.encode() + '{"step": 1, "question": "小'.encode()[:-1])
    assert [r["step"] for r in read_lines(path)] == [0]


@pytest.mark.parametrize("line", ["{}", "5", "[" * 10**5, '{"step": "x"}'])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ForgeError, match="m.jsonl:2: "):
        read_lines(path)


def test_leftovers_of_another_run_are_refused_and_a_failed_start_leaves_none(tmp_path):
    Run(tmp_path / "failed", GRPOConfig()).close()   # opened, but the engine never stood
    new(tmp_path / "failed").close()
    (tmp_path / "r" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ForgeError, match="already holds a run"):
        Run(tmp_path / "r", GRPOConfig())


def test_a_folder_that_cannot_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ForgeError, match="cannot be made a run's folder"):
            Run(place, GRPOConfig())


@pytest.mark.parametrize("text", ["[]", '{"settings": [1]}', "{", '{"settings": {"steps": "x"}}'])
def test_a_broken_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ForgeError):
        load_config(tmp_path)


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(3, model, optimizer)
    other = toy_model(0, vocab=50, dtype=torch.float32)
    with pytest.raises(ForgeError, match="step-000003 does not fit this run"):
        run.restore(other, torch.optim.AdamW(other.parameters()))


def changed(folder, name, change):
    tensors = load_file(folder / f"{name}.safetensors")
    change(tensors)
    save_file(tensors, folder / f"{name}.safetensors")


@pytest.mark.parametrize(("name", "change"), [
    ("model", lambda t: t.update({next(iter(t)): torch.zeros(1)})),                         # would be broadcast
    ("model", lambda t: t.update({k: torch.full_like(v, float("nan")) for k, v in t.items()})),
    ("model", lambda t: t.pop(next(iter(t)))),
    ("optimizer", lambda t: t.pop(next(k for k in t if k.endswith("exp_avg")))),
    ("optimizer", lambda t: t.update({k: torch.zeros(1) for k in t if k.endswith("exp_avg_sq")})),
])
def test_a_checkpoint_whose_parts_do_not_fit_is_named_and_nothing_is_changed(tmp_path, name, change):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(3, model, optimizer)
    changed(tmp_path / "r" / "checkpoints" / "step-000003", name, change)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.raises(ForgeError, match="step-000003 does not fit this run"):
        run.restore(model, torch.optim.AdamW(model.parameters()))
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_a_copy_beside_the_checkpoints_and_another_step_in_its_state_are_not_taken(tmp_path):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(3, model, optimizer)
    home = tmp_path / "r" / "checkpoints"
    shutil.copytree(home / "step-000003", home / "step-000008.bak")
    assert run.restore(model, optimizer) == 3
    (home / "step-000003" / "state.json").write_text('{"step": 7}')
    with pytest.raises(ForgeError, match="does not fit this run .first: state.json"):
        run.restore(model, optimizer)


def test_adam_states_stand_where_the_optimiser_wants_them(tmp_path):
    """On CUDA a fused AdamW refuses a `step` that was left on the CPU: load_state_dict decides, not we."""
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(3, model, optimizer)
    seen = []
    fresh = torch.optim.AdamW(model.parameters())
    whole = fresh.load_state_dict
    fresh.load_state_dict = lambda state: (seen.append(len(state["state"])), whole(state))
    run.restore(model, fresh)
    assert seen == [len(list(model.parameters()))]


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    model, optimizer = trained()
    run = new(tmp_path / "r")
    run.save(3, model, optimizer)

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(runs, "save_file", full)
    with pytest.raises(ForgeError, match="checkpoint of step 6 was not written .*No space left.*earlier checkpoints are intact") as error:
        run.save(6, model, optimizer)
    assert "\n" not in str(error.value)
    assert [p.name for p in (tmp_path / "r" / "checkpoints").iterdir()] == ["step-000003"]


def test_a_broken_line_in_the_middle_is_named_with_its_number(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0}\n{"step": \n{"step": 2}\n')
    with pytest.raises(ForgeError, match=r"m.jsonl:2: not JSON"):
        read_lines(path)


SETTINGS = ["--steps", "9", "--prompts-per-step", "4", "--group-size", "4", "--eval-problems", "8", "--checkpoint-every", "3",
            "--eval-every", "3", "--max-new-tokens", "24"]


def start(folder, *more):
    return subprocess.Popen([sys.executable, "-m", "rrlforge.cli", "train", "--out", str(folder), *SETTINGS, *more],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_losses_of_an_unbroken_one(tmp_path):
    whole = start(tmp_path / "whole")
    assert whole.wait(300) == 0, whole.stdout.read()
    broken = start(tmp_path / "broken")
    for step in (4, 7):
        deadline = time.time() + 200
        while len(load_metrics(tmp_path / "broken")) < step and time.time() < deadline and broken.poll() is None:
            time.sleep(0.02)
        broken.send_signal(signal.SIGKILL)
        assert broken.wait() == -signal.SIGKILL
        broken = start(tmp_path / "broken", "--resume")
    assert broken.wait(300) == 0, broken.stdout.read()
    timing = {"rollout_s", "train_s", "sync_s", "step_s", "rollout_tokens_per_s", "memory_gib"}
    clean = [[{k: v for k, v in m.items() if k not in timing} for m in load_metrics(tmp_path / name)] for name in ("whole", "broken")]
    assert len(clean[0]) == 9
    assert clean[0] == clean[1]
    evals = [[(e["step"], e["greedy"]["accuracy"]) for e in read_lines(tmp_path / name / "eval.jsonl")] for name in ("whole", "broken")]
    assert evals[0] == evals[1] and [s for s, _ in evals[0]] == [0, 3, 6, 9]


def test_on_a_shared_card_memory_is_this_process_its_context_and_what_the_engine_takes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 10 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40 * 2**30, 100 * 2**30))
    assert runs.memory_gib(8.0) == 60
    monkeypatch.setenv("RRLFORGE_SHARED_GPU", "1")
    assert runs.memory_gib() == pytest.approx(10.74, abs=0.05)
    assert runs.memory_gib(8.0) == pytest.approx(10.74 + 9.19, abs=0.05)
