"""Record speed/forge-trl: forge.py and TRL take turns on one card, and forge.py's rollout beside vLLM's own best.

TRL cuts its micro-batches by rows: the sizes in TRIALS are tried first, under the same cap, and the fastest that fits
is taken. Then both trainers are processes of their own, with the same model, problems, sizes and memory cap. While one steps the
other waits, so that a card that is slow for a minute is slow for both. After each of its steps forge.py's engine
draws once more, as many tokens for the same prompts, by plain `LLM.generate`: the rollout's own floor.
"""
from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from rrlforge import config, files, forge, records, runs, tasks
from rrlforge.errors import ForgeError
from rrlforge.measure.recipe import Recipe

BLOCK = 4      # steps in one turn
READY = "forge-engine-stands"  # two vLLM engines that start at once see each other's memory come and go, and stop
WARM = 2       # first steps of each, not counted: compilation, first allocations
LIMIT_S = 480  # of the turns, and of each trial
CHILD = "import sys; from rrlforge.measure import speed; speed.child(*sys.argv[1:])"
TRIALS = ((32, True), (16, True), (8, False))  # completions in a forward pass, activation checkpointing


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
            (folder.parent / READY).touch()
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


def child(kind: str, settings: str, folder: str, micro_batch: str) -> None:
    cfg, home = config.from_dict(json.loads(settings)), Path(folder)
    if kind == "forge":
        run_forge(cfg, home, Turns(home.parent / "turn", "forge", "trl"))
    elif kind == "trl":
        while not (home.parent / READY).exists():
            time.sleep(0.1)
        run_trl(cfg, home, Turns(home.parent / "turn", "trl", "forge"), int(micro_batch))
    else:
        run_trl(cfg, home, Turns(home / "alone", "trl", ""), int(micro_batch))
    sys.stdout.flush()
    os._exit(0)  # vLLM may hang at exit after its work is done


def settings() -> dict:
    model = os.environ.get("RRLFORGE_MODEL", "Qwen/Qwen3-0.6B")
    preset = config.PRESETS["tiny" if model.startswith("tiny") else "gsm8k"]
    steps = int(os.environ.get("RRLFORGE_STEPS", "12"))
    return {"prompts_per_step": 20, **preset, "model": model, "data": "" if preset == {} else os.environ.get("RRLFORGE_GSM8K", ""), "steps": steps, "eval_problems": 0,
            "checkpoint_every": 0, "reference_every": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(kind: str, chosen: dict, folder: Path, micro_batch: int = 0) -> subprocess.Popen:
    with folder.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, kind, json.dumps(chosen), str(folder), str(micro_batch)],
            env={**os.environ, "RRLFORGE_SHARED_GPU": "1", "TQDM_DISABLE": "1", "MASTER_PORT": str(free_port())}, stdout=log, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL)


def finish(processes: dict[Path, subprocess.Popen]) -> dict[Path, int]:
    """Exit codes of all, none running any more; -1 for one that took more than LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while any(p.poll() is None for p in processes.values()) and time.monotonic() < end:
        time.sleep(0.2)
    for process in processes.values():
        if process.poll() is None:
            process.kill()
    return {folder: process.wait() for folder, process in processes.items()}


def best_of_trl(home: Path, chosen: dict) -> tuple[int, bool, list[dict]]:
    """(micro-batch, checkpointing) of TRL's fastest trial that fits, and what every trial gave (kept in trials.json)."""
    trials, kept = [], home / "trials.json"
    if kept.exists():
        trials = json.loads(kept.read_text("utf8"))
    rows = chosen["prompts_per_step"] * config.from_dict(chosen).group_size
    waiting = [t for t in TRIALS if rows % t[0] == 0 and not trials]
    for size, checkpointing in waiting:
        folder = home / f"trial-{size}-{'ckpt' if checkpointing else 'plain'}"
        code = finish({folder: start("trial", {**chosen, "steps": 4, "activation_checkpointing": checkpointing}, folder, size)})[folder]
        lines = runs.load_metrics(folder)
        out_of_memory = "OutOfMemory" in folder.with_suffix(".log").read_text("utf8", errors="replace")
        trials.append({"micro_batch": size, "checkpointing": checkpointing, "fits": code == 0, "out_of_memory": out_of_memory,
                       "step_s": statistics.median(m["step_s"] for m in lines[1:]) if len(lines) > 1 else None,
                       "memory_gib": lines[-1]["memory_gib"] if lines else None})
        print(json.dumps(trials[-1]), flush=True)
    files.write_json(kept, trials)
    fitting = [t for t in trials if t["fits"] and t["step_s"]]
    if not fitting:
        raise ForgeError(f"no trial of TRL ran to its end: read the logs in {home}")
    best = min(fitting, key=lambda t: t["step_s"])
    return best["micro_batch"], best["checkpointing"], trials


def measure(name: str) -> dict:
    """The record: seconds a step of both, side by side, and where forge.py's go."""
    home = Path(os.environ.get("RRLFORGE_RUNS", "runs")) / name
    if (home / "forge").exists():
        raise ForgeError(f"{home} holds an earlier measurement: move it away, or set RRLFORGE_RUNS")
    home.mkdir(parents=True, exist_ok=True)
    chosen = settings()
    micro_batch, checkpointing, trials = best_of_trl(home, chosen)
    (home / "turn").write_text("forge")
    processes = {home / "forge": start("forge", chosen, home / "forge"),
                 home / "trl": start("trl", {**chosen, "activation_checkpointing": checkpointing}, home / "trl", micro_batch)}
    for folder, code in finish(processes).items():
        if code:
            raise ForgeError(f"{folder.name} ended with code {code}: read {folder}.log")
    return record(name, home, chosen, micro_batch, checkpointing, trials)


def record(name: str, home: Path, chosen: dict, micro_batch: int, checkpointing: bool, trials: list[dict]) -> dict:
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
               "trl_micro_batch": micro_batch, "trl_checkpointing": checkpointing, "steps_counted": len(ours), "block": BLOCK, "warm_steps": WARM}
    series["trl_trials"] = trials
    if floor:
        shares = [(t / s) / (f["tokens"] / f["seconds"]) for t, s, f in zip(series["forge_tokens"], series["forge_rollout_s"], floor)]
        figures["rollout_share_of_vllm"] = round(statistics.median(shares), 3)
    cuda = torch.cuda.is_available()
    model = os.environ.get("RRLFORGE_MODEL_LABEL", Path(cfg.model).name)
    return {"figures": figures, "series": series, "origin": records.origin(
        torch.cuda.get_device_name(0) if cuda else "", model, cfg.task_name, f"rrlforge record {name}",
        f"{cfg.memory_cap_gib:g} GiB" if cuda and cfg.memory_cap_gib else "")}


RECIPES = {"speed/forge-trl": Recipe("seconds a step of forge.py and of TRL in turns, on one card (about 8 minutes)", measure)}
