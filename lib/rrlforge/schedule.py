"""What a step uses: its problems, its seed, its learning rate. All follow from the step's number alone."""
from __future__ import annotations

import random
from functools import lru_cache

from rrlforge.config import GRPOConfig


@lru_cache(maxsize=4)
def _order(count: int, epoch: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(f"{seed}-{epoch}").sample(range(count), count))


def pick(problems: list, step: int, count: int, seed: int) -> list:
    """The `count` problems of a step: every epoch is a shuffle of its own, the same for the same seed."""
    chosen = []
    for index in range(step * count, (step + 1) * count):
        epoch, place = divmod(index, len(problems))
        chosen.append(problems[_order(len(problems), epoch, seed)[place]])
    return chosen


def rollout_seed(seed: int, step: int) -> int:
    """The sampling seed of a step: different for every step, so that a resumed run draws the same completions."""
    return (seed * 1_000_003 + step) % 2**31


def learning_rate(step: int, cfg: GRPOConfig) -> float:
    """Linear warm-up to the peak, then linear decay that ends, at the last step, with the share lr_end of it."""
    warm = min(cfg.warmup_steps, cfg.steps)
    if step < warm:
        return cfg.lr * (step + 1) / warm
    return cfg.lr * (1 - (1 - cfg.lr_end) * (step - warm) / max(cfg.steps - warm - 1, 1))


def set_learning_rate(optimizer, step: int, cfg: GRPOConfig) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, cfg)
