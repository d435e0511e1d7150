"""A run's folder: settings, metrics, samples, checkpoints. Everything is written beside and renamed.

    config.json            the settings and the versions
    metrics.jsonl          one line a step
    samples.jsonl          a few completions a step, to be read
    eval.jsonl             one line an evaluation
    checkpoints/step-N/    model.safetensors, optimizer.safetensors, state.json (the last two are kept)
    model/                 the trained model as a Hugging Face folder
"""
from __future__ import annotations

import fcntl
import json
import math
import os
import re
import resource
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers.utils import logging

from rrlforge import rewards, schedule
from rrlforge.config import GRPOConfig, from_dict, parse_rewards, to_dict
from rrlforge.errors import ForgeError
from rrlforge.files import flush, write_atomically, write_json
from rrlforge.records import versions
from rrlforge.vram import CONTEXT_GIB, ENGINE_OVER_GIB

KEPT = ("config.json", "metrics.jsonl", "samples.jsonl", "eval.jsonl", "checkpoints", "model")  # what makes a folder a run
CHECKPOINT = re.compile(r"step-\d{6,}")
ADAM = ("step", "exp_avg", "exp_avg_sq")


def read_lines(path: Path, numbers: tuple[str, ...] = ()) -> list[dict]:
    """The records of a .jsonl file; a last line cut by a crash is left out, any other broken line is an error, and so
    is a record in which one of `numbers` ("reward", "greedy.accuracy") is no number."""
    if not path.exists():
        return []
    lines, records = path.read_bytes().split(b"\n"), []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line.decode("utf8"))
        except (ValueError, RecursionError):
            if number == len(lines):  # no newline behind it: the write was cut, perhaps within a character
                break
            raise ForgeError(f"{path}:{number}: not JSON; mend or remove the line") from None
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            raise ForgeError(f"{path}:{number}: a record without a step; mend or remove the line")
        for name in numbers:
            outer, _, inner = name.rpartition(".")
            holder = record.get(outer) if outer else record
            if not isinstance(holder, dict) or not isinstance(holder.get(inner), (int, float)):
                raise ForgeError(f"{path}:{number}: a record without {name}; mend or remove the line")
        records.append(record)
    return records


def memory_gib(engine_gib: float = 0.0) -> float:
    """GiB in use: of the whole GPU as its driver counts it (engine included), or this process's peak RAM without one.

    With RRLFORGE_SHARED_GPU=1 other jobs use the card too, and what the driver counts is not ours alone: then the
    memory of this process, its CUDA context, the engine's budget, and what vLLM takes beyond it (measured: vram.py).
    """
    if torch.cuda.is_available():
        if os.environ.get("RRLFORGE_SHARED_GPU") == "1":
            engine = engine_gib + ENGINE_OVER_GIB if engine_gib else 0.0
            return torch.cuda.memory_reserved() / 2**30 + CONTEXT_GIB + engine
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def whole(beside: Path, what: str):
    """Where writing into folder `beside` fails (a full disk), remove it and raise a `ForgeError` of one line."""
    try:
        yield
    except Exception as error:  # safetensors and the system have no error in common
        shutil.rmtree(beside, ignore_errors=True)
        reason = (str(error).strip().splitlines() or [""])[-1][:150]
        raise ForgeError(f"{beside.parent}: {what} was not written ({type(error).__name__}: {reason}); earlier checkpoints are "
                         "intact: make room, then go on with --resume") from None


def fits(folder: Path, step: int, weights: dict, moments: dict, model: torch.nn.Module) -> None:
    """Raise `ForgeError` unless the checkpoint's parts belong together and to `model`."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    wrong = [n for n, shape in shapes.items() if n not in weights or weights[n].shape != shape]
    touched = {key.rpartition(".")[0] for key in moments}
    wrong += [f"{n}.{key}" for n in sorted(touched) for key in ADAM
              if n not in shapes or f"{n}.{key}" not in moments or (key != "step" and moments[f"{n}.{key}"].shape != shapes[n])]
    wrong += [n for n, w in weights.items() if not torch.isfinite(w).all()]
    if step != int(folder.name.removeprefix("step-")):
        wrong.append("state.json")
    if wrong:
        raise ForgeError(f"{folder} does not fit this run (first: {wrong[0]}): delete it to resume from the one before")


class Run:
    """An open run folder. One process at a time: a lock refuses the second.

    Raises `ForgeError` when the folder holds a run and `resume` is false, when `resume` is true and there
    is none, when its settings differ from `cfg`, or when another process holds it.
    """

    def __init__(self, folder: str | Path, cfg: GRPOConfig, resume: bool = False):
        self.folder, self.cfg, self.bar = Path(folder), cfg, None
        self.engine_gib = cfg.engine_gib  # of an engine that is a process of its own
        rewards.check_weights(parse_rewards(cfg.rewards))
        config = self.folder / "config.json"
        if resume and not config.exists():
            raise ForgeError(f"{self.folder} holds no run to resume: config.json is missing")
        if not resume and any((self.folder / name).exists() for name in KEPT):
            raise ForgeError(f"{self.folder} already holds a run: choose another --out, or go on with --resume")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise ForgeError(f"{self.folder} cannot be made a run's folder ({error.strerror}): choose another --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ForgeError(f"{self.folder} is in use by another process: wait for it, or choose another --out") from None
        self._stack = ExitStack()
        self._stack.callback(self._lock.close)
        if resume:
            self._check_same(load_config(self.folder))

    def begin(self) -> None:
        """Hold to the memory cap and write config.json: from here on the folder holds a run. Called when model
        and engine stand."""
        self.cap_memory()
        write_json(self.folder / "config.json", {"settings": to_dict(self.cfg), "versions": versions()})

    def _check_same(self, before: GRPOConfig) -> None:
        """A resumed run may change what does not touch its numbers, nothing else. `steps` sets how the learning rate
        decays: only a run without decay (lr_end 1) may be made longer."""
        free = {"checkpoint_every", "eval_every", "memory_cap_gib", "engine_gib"}
        old, new = to_dict(before), to_dict(self.cfg)
        if before.lr_end == 1 and self.cfg.steps > before.steps:
            free.add("steps")
        for name in old:
            if name not in free and old[name] != new[name]:
                raise ForgeError(f"{self.folder} was started with {name}={old[name]!r}, not {new[name]!r}: "
                                 "resume with the same settings")

    # ---- lines

    def append(self, name: str, record: dict) -> None:
        """Append one record to `name`.jsonl. Non-finite numbers become null: JSON has none."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        with (self.folder / f"{name}.jsonl").open("a", encoding="utf8") as file:
            file.write(json.dumps(clean, ensure_ascii=False) + "\n")

    def _cut_after(self, step: int) -> None:
        """Drop lines of steps that the checkpoint has not seen: they will be run again."""
        for name in ("metrics", "samples", "eval"):
            path = self.folder / f"{name}.jsonl"
            if path.exists():
                seen = step + 1 if name == "eval" and step else step  # the evaluation after `step` steps stands before its checkpoint
                kept = [r for r in read_lines(path) if r["step"] < seen]
                write_atomically(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept))

    # ---- checkpoints

    def save(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Checkpoint after `step` steps. The last two stay; a half-written one is never seen."""
        home = self.folder / "checkpoints"
        beside, final = home / f".step-{step:06d}.part", home / f"step-{step:06d}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        names = {id(p): n for n, p in model.named_parameters()}
        params = [p for group in optimizer.param_groups for p in group["params"]]
        moments = {f"{names[id(p)]}.{key}": value.contiguous() for p in params
                   for key, value in optimizer.state.get(p, {}).items()}
        with whole(beside, f"the checkpoint of step {step}"):
            save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, beside / "model.safetensors")
            save_file(moments, beside / "optimizer.safetensors")
            write_json(beside / "state.json", {"step": step})
            for file in (*beside.iterdir(), beside):
                flush(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(beside, final)
        flush(home)
        for old in sorted(home.glob("step-*"))[:-2]:
            shutil.rmtree(old)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the newest checkpoint into model and optimiser; returns the number of finished steps (0: none).

        Raises `ForgeError` naming a checkpoint that cannot be read or does not fit, before anything is changed.
        """
        found = sorted(f for f in (self.folder / "checkpoints").glob("step-*") if CHECKPOINT.fullmatch(f.name))
        if not found and read_lines(self.folder / "metrics.jsonl"):
            print(f"{self.folder} has no checkpoint: its steps are run again from the start", file=sys.stderr)
        step = 0
        if found:
            folder = found[-1]
            try:
                step = int(json.loads((folder / "state.json").read_text("utf8"))["step"])
                weights, moments = (load_file(folder / f"{n}.safetensors") for n in ("model", "optimizer"))
                fits(folder, step, weights, moments, model)
            except ForgeError:
                raise
            except Exception as error:  # safetensors, json and torch have no error in common
                raise ForgeError(f"{folder} cannot be read ({type(error).__name__}): delete it to resume from the one before") from None
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(weights[name])
                    if f"{name}.exp_avg" in moments:
                        optimizer.state[p] = {key: moments[f"{name}.{key}"] for key in ADAM}
            optimizer.load_state_dict(optimizer.state_dict())  # puts every state where the optimiser wants it, `step` too
        self._cut_after(step)
        return step

    def save_model(self, model, tokenizer) -> Path:
        """The trained model as a Hugging Face folder (safetensors) under model/."""
        final, beside = self.folder / "model", self.folder / ".model.part"
        shutil.rmtree(beside, ignore_errors=True)
        logging.disable_progress_bar()
        with whole(beside, "the trained model"):
            model.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(beside, final)
        return final

    def cap_memory(self) -> None:
        """Hold this process to what memory_cap_gib leaves beside the engine (call it when the engine stands)."""
        if self.cfg.memory_cap_gib and torch.cuda.is_available():
            others = memory_gib(self.engine_gib) - torch.cuda.memory_reserved() / 2**30
            total = torch.cuda.get_device_properties(0).total_memory / 2**30
            if others >= self.cfg.memory_cap_gib:
                raise ForgeError(f"{others:.1f} GiB of GPU memory are taken beside the trainer, the cap is "
                                 f"{self.cfg.memory_cap_gib:g}: lower engine_gib, or close what else uses the card")
            torch.cuda.set_per_process_memory_fraction(min(1.0, (self.cfg.memory_cap_gib - others) / total))

    # ---- what a step is held to, and what it leaves

    def check(self, step: int, figures: dict, scores: list[float], rows: list, texts: list[str]) -> None:
        """Stop with one line on a non-finite reward or loss (the batch is saved and named), on an engine that
        samples from other weights than the trainer's, and above the memory cap."""
        bad = None if math.isfinite(figures["loss"]) else "the loss"
        bad = bad if all(map(math.isfinite, scores)) else "a reward"
        if bad:
            path = self.folder / f"bad-batch-step-{step}.json"
            write_json(path, {"step": step, "what": bad, "completions": texts, "rewards": [str(x) for x in scores],
                              "advantages": [str(r.advantage) for r in rows], "prompts": [r.prompt for r in rows],
                              "token_ids": [r.completion for r in rows]})
            raise ForgeError(f"step {step}: {bad} is not finite; the batch is in {path}, the last checkpoint is intact: "
                             "look at the batch, or lower lr")
        if not figures.get("mismatch", 0.0) <= self.cfg.max_mismatch:  # a NaN stops too
            raise ForgeError(f"step {step}: engine and trainer log-probs differ by {figures['mismatch']:.3g} nats on average "
                             f"(max_mismatch {self.cfg.max_mismatch:g}): the engine does not hold the trainer's weights")
        used = memory_gib(self.engine_gib)
        if 0 < self.cfg.memory_cap_gib < used and torch.cuda.is_available():
            raise ForgeError(f"step {step}: {used:.1f} GiB of GPU memory in use, the cap is {self.cfg.memory_cap_gib:g}: "
                             "lower token_budget, then logit_chunk, then engine_gib")

    def log_step(self, step: int, problems: list, texts: list[str], scores: list[float], parts: dict[str, list[float]],
                 done, figures: dict, kl: float | None, clock: list[float]) -> None:
        """Append the step's line to metrics.jsonl and its first group to samples.jsonl."""
        count, size = len(texts), self.cfg.group_size
        lengths = [len(ids) for ids in done.token_ids]
        groups = [scores[i:i + size] for i in range(0, count, size)]
        rollout, train, sync = (b - a for a, b in zip(clock, clock[1:]))
        known = [logp for logps in done.logprobs if logps is not None for logp in logps]
        correct = rewards.correctness(texts, [p.answer for p in problems for _ in range(size)])
        record = {
            "step": step, "reward": sum(scores) / count, "accuracy": sum(correct) / count,
            **{f"reward_{name}": sum(values) / count for name, values in parts.items()},
            "flat_groups": sum(min(g) == max(g) for g in groups) / len(groups),
            "entropy": -sum(known) / max(len(known), 1), "kl": kl, **figures,
            "lr": schedule.learning_rate(step, self.cfg),
            "length": sum(lengths) / count, "length_max": max(lengths),
            "truncated": done.finish_reason.count("length") / count,
            "rollout_s": rollout, "train_s": train, "sync_s": sync, "step_s": clock[-1] - clock[0],
            "tokens": done.tokens, "rollout_tokens_per_s": done.tokens / rollout, "memory_gib": memory_gib(self.engine_gib),
        }
        self.append("metrics", record)
        self.append("samples", {"step": step, "question": problems[0].question, "gold": problems[0].answer,
                                "completions": texts[:size], "rewards": scores[:size]})
        if self.bar is not None:
            self.bar.set_postfix(reward=f"{record['reward']:.3f}", acc=f"{record['accuracy']:.3f}",
                                 len=f"{record['length']:.0f}", s=f"{record['step_s']:.1f}")

    # ---- progress

    def progress(self, steps: range) -> tqdm:
        """A live bar on a terminal, silent elsewhere (notebooks, logs, TQDM_DISABLE=1)."""
        quiet = not sys.stderr.isatty() or os.environ.get("TQDM_DISABLE") == "1"
        self.bar = tqdm(steps, desc=self.folder.name, initial=steps.start, total=steps.stop, disable=quiet, unit="step")
        return self.bar

    # ---- the end, also by an error or Ctrl-C in a notebook

    def closing(self, resource):
        """Hand `resource` back, and close it when the run is left, before the lock is given up."""
        self._stack.callback(resource.close)
        return resource

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def load_config(folder: str | Path) -> GRPOConfig:
    path = Path(folder) / "config.json"
    try:
        return from_dict(json.loads(path.read_text("utf8"))["settings"])
    except FileNotFoundError:
        raise ForgeError(f"{path} does not exist: is {folder} a run folder?") from None
    except ForgeError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForgeError(f"{path} is broken ({type(error).__name__}): restore it, or start a new run") from None


def load_metrics(folder: str | Path) -> list[dict]:
    """The lines of metrics.jsonl, oldest first."""
    return read_lines(Path(folder) / "metrics.jsonl")
