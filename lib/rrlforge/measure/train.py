"""Records of trainings. RRLFORGE_RUNS names the folder that keeps the runs behind them (default runs/); a finished
run found there is read, not repeated.
"""
from __future__ import annotations

import os
import statistics
from functools import partial
from pathlib import Path

import torch

from rrlforge import config, forge, records, report, runs
from rrlforge.course import find_root
from rrlforge.measure.recipe import Recipe

SERIES = ("reward", "accuracy", "entropy", "kl", "length", "truncated", "grad_norm", "flat_groups", "clip_share", "mismatch",
          "rollout_s", "train_s", "sync_s", "step_s", "tokens", "memory_gib")


def run_or_read(name: str, cfg: config.GRPOConfig) -> Path:
    """Train into RRLFORGE_RUNS/name; a run that is there is resumed, a finished one only read."""
    folder = Path(os.environ.get("RRLFORGE_RUNS", "runs")) / name
    if not (folder / "model").exists():
        forge.train(cfg, folder, resume=(folder / "config.json").exists())
    return folder


def training_record(name: str, settings: dict, seeds: tuple[int, ...]) -> dict:
    """One record of a training: figures over the seeds, series of every seed. tiny starts from another seed too."""
    figures, series = {"seeds": list(seeds)}, {}
    for seed in seeds:
        model = f"tiny:{seed}" if settings["model"] == "tiny" else settings["model"]
        cfg = config.from_dict({**settings, "model": model, "seed": seed})
        folder = run_or_read(f"{name}-seed{seed}", cfg)
        metrics, evals = runs.load_metrics(folder), report.load_evals(folder)
        for key in SERIES:
            series[f"{key}/{seed}"] = [None if m.get(key) is None else round(m[key], 5) for m in metrics]
        for kind in ("greedy", "sampled"):
            series[f"eval_{kind}/{seed}"] = [{"step": e["step"], **{k: round(v, 5) for k, v in e[kind].items()}} for e in evals]
    for kind in ("greedy", "sampled"):
        for end, place in (("before", 0), ("after", -1)):
            values = [series[f"eval_{kind}/{s}"][place]["accuracy"] for s in seeds if series[f"eval_{kind}/{s}"]]
            figures[f"{kind}_{end}"] = values
    step_s = [x for s in seeds for x in series[f"step_s/{s}"]]
    figures["step_s_median"] = statistics.median(step_s)
    figures["run_s"] = [sum(series[f"step_s/{s}"]) for s in seeds]
    figures["memory_gib_max"] = max(x for s in seeds for x in series[f"memory_gib/{s}"])
    cap = f"{cfg.memory_cap_gib:g} GiB" if torch.cuda.is_available() and cfg.memory_cap_gib else ""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    options = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in settings.items() if k not in ("model", "data"))
    model = settings["model"] if settings["model"] == "tiny" else os.environ.get("RRLFORGE_MODEL_LABEL", Path(cfg.model).name)
    start = "tiny:SEED" if settings["model"] == "tiny" else Path(settings["model"]).name
    command = " ".join(f"rrlforge record {name}: rrlforge train --model {start} {options} "
                       f"--seed {', '.join(map(str, seeds))}".split())
    return {"figures": figures, "series": series, "origin": records.origin(device, model, cfg.task_name, command, cap)}


def tiny(name: str) -> dict:
    record = training_record(name, dict(model="tiny"), (0, 1, 2))
    report.draw_record(record, find_root() / "book" / "_static" / "train-tiny.png",
                       "tiny (0.4 M parameters), GRPO on Chinese arithmetic, 2 CPU cores")
    return record


def gsm8k(name: str, **changes) -> dict:
    model = os.environ.get("RRLFORGE_MODEL", "Qwen/Qwen3-0.6B")
    seeds = tuple(int(s) for s in os.environ.get("RRLFORGE_SEEDS", "0").split(","))
    settings = {**config.PRESETS["gsm8k"], "model": model, "data": os.environ.get("RRLFORGE_GSM8K", ""), **changes}
    return training_record(name, settings, seeds)


RECIPES: dict[str, Recipe] = {
    "train/tiny": Recipe("tiny on a CPU, three starts, three seeds: reward, held-out accuracy, time (about 10 minutes)", tiny),
    "train/gsm8k-20-steps": Recipe("20 steps of the same, the first 512 test problems before and after (about 5 minutes)",
                                   partial(gsm8k, steps=20, eval_problems=512)),
    "train/gsm8k-lr-1e-5": Recipe("the same at lr 1e-5, which is too much: the score falls (80 steps, about 6 minutes)",
                                  partial(gsm8k, steps=80, lr=1e-5, eval_every=40)),
    "train/gsm8k-forge": Recipe("GRPO on GSM8K on one GPU (RRLFORGE_MODEL, RRLFORGE_SEEDS choose the model and the seeds)", gsm8k),
}

