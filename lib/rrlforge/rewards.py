r"""Rewards: lists of completions and gold answers to lists of floats.

Each reward has TRL's call shape, `reward(completions=..., golds=..., **columns) -> list[float]`, so that the
same function serves forge.py and a `GRPOTrainer` (TRL 1.16, grpo_trainer.py, `_calculate_rewards`: every
column of the data set arrives as a keyword). A completion is a string or TRL's conversational form, a list
of messages `{"role": ..., "content": ...}`. Whatever a completion holds, a reward is a finite number and
never raises; a wrong call (other lengths, golds that are no strings, unknown names) is a `ForgeError`.
"""
import difflib
import math
import re
from collections.abc import Callable, Sequence

from rrlforge.answers import UNKNOWN, is_correct, last_box, to_plain, without_thinking
from rrlforge.errors import ForgeError

CLOSING = " \t\r\n$*.。!！)]\\"      # what may follow the box and still end the answer: $ ** . \)
FILLED = re.compile(rf"[^\W_]|{UNKNOWN}")     # what fills a box: a letter, a digit or a sign such as \alpha


def correctness(completions: Sequence, golds: Sequence[str], **_) -> list[float]:
    """1.0 where the completion states the gold number (`answers.is_correct`), else 0.0.

    A gold in which no number can be read equals nothing: every completion gets 0.0.
    """
    if len(golds) != len(completions):
        raise ForgeError(f"correctness: {len(completions)} completions but {len(golds)} golds: "
                         "give one gold a completion")
    for i, gold in enumerate(golds):
        if not isinstance(gold, str):
            raise ForgeError(f"correctness: golds[{i}] is {type(gold).__name__}: give the answer as a string")
    return [float(is_correct(completion_text(completion), gold))
            for completion, gold in zip(completions, golds, strict=True)]


def format_reward(completions: Sequence, **_) -> list[float]:
    r"""1.0 where exactly one complete, filled \boxed{...} ends the answer, else 0.0.

    Thinking is set aside first; an answer that is still thinking gets 0. Only white
    space, closing marks of LaTeX or Markdown and a full stop may follow the box; a
    box without a letter or digit, as \boxed{\text{}}, is not filled.
    Whether it is right plays no part.
    """
    return [float(_is_well_formed(completion_text(c))) for c in completions]


def _is_well_formed(text: str) -> bool:
    answer = without_thinking(text) or ""
    box = last_box(answer)
    if box is None or answer.count("\\box") != 1:
        return False
    inside, behind = box
    return bool(FILLED.search(to_plain(inside))) and not behind.strip(CLOSING)


def completion_text(completion: object) -> str:
    """The text of a completion: a string, or the content of its last message; "" for anything else.

    A content in parts (OpenAI's style, `[{"type": "text", "text": ...}, ...]`) is the text of its text parts.
    """
    if isinstance(completion, (list, tuple)) and completion and isinstance(completion[-1], dict):
        completion = completion[-1].get("content")
        if isinstance(completion, (list, tuple)):
            parts = [part for part in completion if isinstance(part, dict) and part.get("type") == "text"]
            completion = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return completion if isinstance(completion, str) else ""


REWARDS: dict[str, Callable[..., list[float]]] = {"correct": correctness, "format": format_reward}
BUILT_IN = tuple(REWARDS)


def register(name: str, reward: Callable[..., list[float]]) -> None:
    """Let `rewards="name=1"` of a config, here and in a `GRPOTrainer`, mean a reward of your own: for this process.

    A cell may run again: your own name is replaced, a name of the library is not.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise ForgeError(f"reward name {name!r}: take letters, digits and _, a letter first")
    if name in BUILT_IN:
        raise ForgeError(f"reward {name!r} is the library's own: take another name")
    REWARDS[name] = reward


def check_weights(weights: dict[str, float]) -> None:
    """Raise `ForgeError` unless `weights` names known rewards, at least one, with finite weights."""
    if not weights:
        raise ForgeError(f"no reward named: choose from {', '.join(REWARDS)}")
    for name, weight in weights.items():
        if name not in REWARDS:
            near = difflib.get_close_matches(name, REWARDS, 1, cutoff=0)
            raise ForgeError(f"unknown reward {name!r}: did you mean {near[0]}? Known: {', '.join(REWARDS)}")
        if not math.isfinite(weight):
            raise ForgeError(f"reward {name!r} has weight {weight}: give a finite number")


def score(completions: Sequence, golds: Sequence[str],
          weights: dict[str, float]) -> tuple[list[float], dict[str, list[float]]]:
    """Weighted totals (N,) and, by name, the unweighted parts (N,) of N completions.

    Raises `ForgeError` on an unknown reward (naming the nearest known one), a weight that is not finite, another
    number of golds than of completions, or a reward that does not give one number a completion.
    """
    check_weights(weights)
    parts = {name: REWARDS[name](completions=completions, golds=golds) for name in weights}
    for name, values in parts.items():
        if len(values) != len(completions):
            raise ForgeError(f"reward {name!r} gave {len(values)} numbers for {len(completions)} completions")
    totals = [sum(weights[name] * parts[name][i] for name in weights) for i in range(len(completions))]
    return totals, parts
