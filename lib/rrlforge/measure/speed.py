"""Record speed/forge-trl: forge.py and TRL take turns on one card, and forge.py's rollout beside vLLM's own best.

Both trainers are processes of their own, with the same model, problems, sizes and memory cap. While one steps the
other waits, so that a card that is slow for a minute is slow for both. After each of its steps forge.py's engine
draws once more, as many tokens for the same prompts, by plain `LLM.generate`: the rollout's own floor.
"""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from rrlforge import config, forge, records, runs, tasks
from rrlforge.errors import ForgeError
from rrlforge.measure.recipe import Recipe

BLOCK = 4      # steps in one turn
WARM = 2       # first steps of each, not counted: compilation, first allocations
LIMIT_S = 480  # of the whole measurement


class Turns:
    """Who may step: the name in a file that both processes read."""

    def __init__(self, file: Path, mine: str, other: str):
        self.file, self.mine, self.other, self.steps = file, mine, other, 0

    def wait(self) -> None:
        while self.file.exists() and self.file.read_text() not in (self.mine, ""):
            time.sleep(0.01)

    def done(self) -> None:
        self.steps += 1
        if self.steps % BLOCK == 0:
            self.give()

    def give(self) -> None:
        beside = self.file.with_suffix(f".{self.mine}")
        beside.write_text(self.other)
        os.replace(beside, self.file)

    def leave(self) -> None:
        self.file.unlink(missing_ok=True)


def run_forge(cfg: config.GRPOConfig, folder: Path, turns: Turns) -> None:
    class TurnRun(runs.Run):
        def closing(self, resource):
            self.engine = resource
            return super().closing(resource)

        def progress(self, steps: range) -> Iterator[int]:
            for step in steps:
                turns.wait()
                yield step
                turns.done()
            turns.leave()

        def log_step(self, step, problems, texts, scores, parts, done, figures, kl, clock):
            super().log_step(step, problems, texts, scores, parts, done, figures, kl, clock)
            if hasattr(self.engine, "llm"):
                self.append("floor", {"step": step, **plain_generate(self.engine, cfg, problems, done)})

        def save(self, *_):
            pass

        def save_model(self, *_):
            pass

    forge.Run = TurnRun
    forge.train(cfg, folder)


def plain_generate(engine, cfg: config.GRPOConfig, problems: list, done) -> dict:
    """Seconds and tokens of vLLM alone: the same prompts, as many tokens each, no log-probs, no text."""
    from vllm import SamplingParams

    from rrlforge.models import load_tokenizer
    task, tokenizer = tasks.load_task(cfg.task_name, cfg.data or None), load_tokenizer(cfg.model)
    prompts = [{"prompt_token_ids": tasks.prompt_ids(tokenizer, p, task)} for p in problems for _ in range(cfg.group_size)]
    params = [SamplingParams(temperature=cfg.temperature, max_tokens=len(ids), ignore_eos=True, detokenize=False)
              for ids in done.token_ids]
    engine.llm.reset_prefix_cache()
    start = time.perf_counter()
    answers = engine.llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    engine.llm.reset_prefix_cache()
    return {"seconds": seconds, "tokens": sum(len(a.outputs[0].token_ids) for a in answers)}


def run_trl(cfg: config.GRPOConfig, folder: Path, turns: Turns, micro_batch: int) -> None:
    from transformers import TrainerCallback

    from rrlforge import trl_forge

    class TakeTurns(TrainerCallback):  # placed before the clock of trl_forge.Metrics by its own wait at the step's end
        def on_train_begin(self, *_, **__):
            turns.wait()

        def on_step_end(self, args, state, control, **_):
            turns.done()
            if state.global_step == cfg.steps:
                turns.leave()

        def on_log(self, *_, **__):
            turns.wait()

    trl_forge.train(cfg, folder, micro_batch, callbacks=(TakeTurns(),))


def child(kind: str, settings: str, folder: str, micro_batch: int) -> None:
    cfg, home = config.from_dict(json.loads(settings)), Path(folder)
    other = {"forge": "trl", "trl": "forge"}[kind]
    turns = Turns(home.parent / "turn", kind, other)
    if kind == "forge":
        run_forge(cfg, home, turns)
    else:
        run_trl(cfg, home, turns, micro_batch)
    sys.stdout.flush()
    os._exit(0)  # vLLM may hang at exit after its work is done


def settings() -> dict:
    model = os.environ.get("RRLFORGE_MODEL", "Qwen/Qwen3-0.6B")
    preset = config.PRESETS["tiny" if model.startswith("tiny") else "gsm8k"]
    steps = int(os.environ.get("RRLFORGE_STEPS", "12"))
    return {**preset, "model": model, "data": os.environ.get("RRLFORGE_GSM8K", ""), "steps": steps, "eval_problems": 0,
            "checkpoint_every": 0, "reference_every": 0}


def measure(name: str) -> dict:
    """The record: seconds a step of both, side by side, and where forge.py's go."""
    home = Path(os.environ.get("RRLFORGE_RUNS", "runs")) / name
    if home.exists():
        raise ForgeError(f"{home} holds an earlier measurement: move it away, or set RRLFORGE_RUNS")
    home.mkdir(parents=True)
    (home / "turn").write_text("forge")
    micro_batch = int(os.environ.get("RRLFORGE_MICRO_BATCH", "8"))
    chosen = settings()
    environment = {**os.environ, "RRLFORGE_SHARED_GPU": "1", "TQDM_DISABLE": "1"}
    children = {}
    for kind in ("forge", "trl"):
        with (home / f"{kind}.log").open("w") as log:
            children[kind] = subprocess.Popen(
                [sys.executable, "-m", "rrlforge.measure.speed", kind, json.dumps(chosen), str(home / kind), str(micro_batch)],
                env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    end = time.monotonic() + LIMIT_S
    try:
        for kind, process in children.items():
            code = process.wait(max(1, end - time.monotonic()))
            if code:
                raise ForgeError(f"{kind} ended with code {code}: read {home / kind}.log")
    except subprocess.TimeoutExpired:
        raise ForgeError(f"the measurement took more than {LIMIT_S} s: read the logs in {home}") from None
    finally:
        for process in children.values():
            process.kill()
    return record(name, home, chosen, micro_batch)


def record(name: str, home: Path, chosen: dict, micro_batch: int) -> dict:
    cfg = config.from_dict(chosen)
    ours, theirs = (runs.load_metrics(home / kind)[WARM:] for kind in ("forge", "trl"))
    floor = runs.read_lines(home / "forge" / "floor.jsonl")[WARM:]
    series = {f"forge_{key}": [round(m[key], 4) for m in ours] for key in
              ("step_s", "rollout_s", "train_s", "sync_s", "tokens", "length", "memory_gib")}
    series |= {f"trl_{key}": [None if m[key] is None else round(m[key], 4) for m in theirs] for key in ("step_s", "length", "memory_gib")}
    series |= {f"vllm_{key}": [round(f[key], 4) for f in floor] for key in ("seconds", "tokens")}
    middle = {key: statistics.median(series[f"forge_{key}"]) for key in ("step_s", "rollout_s", "train_s", "sync_s")}
    trl = statistics.median(series["trl_step_s"])
    figures = {"forge_step_s": middle["step_s"], "trl_step_s": trl, "ratio": round(middle["step_s"] / trl, 3), **middle,
               "trl_micro_batch": micro_batch, "steps_counted": len(ours), "block": BLOCK, "warm_steps": WARM}
    if floor:
        shares = [(t / s) / (f["tokens"] / f["seconds"]) for t, s, f in zip(series["forge_tokens"], series["forge_rollout_s"], floor)]
        figures["rollout_share_of_vllm"] = round(statistics.median(shares), 3)
    cuda = torch.cuda.is_available()
    model = os.environ.get("RRLFORGE_MODEL_LABEL", Path(cfg.model).name)
    return {"figures": figures, "series": series, "origin": records.origin(
        torch.cuda.get_device_name(0) if cuda else "", model, cfg.task_name, f"rrlforge record {name}",
        f"{cfg.memory_cap_gib:g} GiB" if cuda and cfg.memory_cap_gib else "")}


RECIPES = {"speed/forge-trl": Recipe("seconds a step of forge.py and of TRL in turns, on one card (about 6 minutes)", measure)}

if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
