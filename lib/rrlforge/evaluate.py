"""Scores with intervals, and the protocol that they were measured by.

accuracy   share of right answers, with Wilson's interval (Wilson 1927); with several samples a problem the
           interval uses the effective sample size of clustered data (Kish's design effect)
pass@k     the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, eq. 1)
"""
from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from statsmodels.stats.proportion import proportion_confint

from rrlforge import answers, tasks
from rrlforge.engines import Sampling
from rrlforge.errors import ForgeError
from rrlforge.files import write_json
from rrlforge.records import versions


def wilson(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a proportion; `ForgeError` without trials or with more successes than trials."""
    if not 0 <= successes <= trials or trials <= 0:
        raise ForgeError(f"{successes} successes in {trials} trials: no proportion")
    low, high = proportion_confint(successes, trials, alpha=1 - confidence, method="wilson")
    share = successes / trials  # all right or none: rounding must not leave the share outside
    return min(float(low), share), max(float(high), share)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of them right, hold a right one: 1 - C(n-c, k) / C(n, k)."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ForgeError(f"pass@{k} of {n} samples, {c} right: needs 0 <= right <= samples and 1 <= k <= samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def clustered_wilson(right: list[int], n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for problems with n samples each, `right` of them right per problem.

    Samples of one problem are alike, so they count for less: the effective number of trials is
    p (1 - p) over the variance of the mean across problems, at most the number of samples.
    """
    count = len(right)
    p = sum(right) / (count * n)
    if n == 1 or count == 1 or p in (0.0, 1.0):
        effective = count if n > 1 else count * n
    else:
        shares = [r / n for r in right]
        variance = sum((s - p) ** 2 for s in shares) / (count - 1) / count
        effective = min(count * n, p * (1 - p) / variance) if variance > 0 else count * n
    return wilson(p * effective, effective, confidence)


def paired_difference(a: list[int], b: list[int], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of b - a over the same problems, and its normal interval: (difference, low, high)."""
    if len(a) != len(b) or len(a) < 2:
        raise ForgeError(f"{len(a)} and {len(b)} scores: a paired difference needs the same problems, at least two")
    from statsmodels.stats.weightstats import DescrStatsW

    stats = DescrStatsW([y - x for x, y in zip(a, b)])
    if stats.std == 0:
        return float(stats.mean), float(stats.mean), float(stats.mean)
    low, high = stats.zconfint_mean(alpha=1 - confidence)
    return float(stats.mean), float(low), float(high)


@dataclass
class Score:
    """One evaluation. right[i] of `samples` completions of problem i were right."""

    accuracy: float
    low: float
    high: float
    truncated: float
    length: float
    samples: int
    right: list[int]
    protocol: dict
    pass_k: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        more = "".join(f", pass@{k} {v:.1%}" for k, v in self.pass_k.items() if k > 1)
        return (f"{self.accuracy:.1%} [{self.low:.1%}, {self.high:.1%}]{more}, truncated {self.truncated:.1%} "
                f"({len(self.right)} problems x {self.samples})")

    def save(self, path: str | Path) -> None:
        write_json(path, asdict(self))


def load_score(path: str | Path) -> Score:
    try:
        values = json.loads(Path(path).read_text("utf8"))
        values["pass_k"] = {int(k): v for k, v in values["pass_k"].items()}
        return Score(**values)
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ForgeError(f"{path} is no saved score ({type(error).__name__}): make one with rrlforge eval --out") from None


def evaluate(engine, tokenizer, task: tasks.Task, problems: list[tasks.Problem], sampling: Sampling, n: int = 1,
             split: str = "test", thinking: bool = False) -> Score:
    """Draw n completions for each problem and score them by `answers.is_correct`; temperature 0 is greedy."""
    check(sampling, n, problems)
    start = time.perf_counter()
    drawn = replace(sampling, logprobs="none")
    done = engine.generate([tasks.prompt_ids(tokenizer, p, task, thinking) for p in problems], n, drawn)
    texts = tokenizer.batch_decode(done.token_ids, skip_special_tokens=True)
    hits = [answers.is_correct(text, problems[i // n].answer) for i, text in enumerate(texts)]
    right = [sum(hits[i:i + n]) for i in range(0, len(hits), n)]
    low, high = clustered_wilson(right, n)
    ks = [k for k in (1, 2, 4, 8, 16, 32) if k <= n]
    return Score(
        accuracy=sum(right) / len(hits), low=low, high=high,
        truncated=done.finish_reason.count("length") / len(texts), length=done.tokens / len(texts), samples=n, right=right,
        pass_k={k: sum(pass_at_k(n, c, k) for c in right) / len(right) for k in ks},
        protocol=protocol(task, problems, sampling, n, split, thinking, engine), seconds=time.perf_counter() - start)


def check(sampling: Sampling, n: int, problems: list) -> None:
    """Refuse an evaluation that cannot say anything, before a model is loaded for it."""
    if not problems:
        raise ForgeError("no problems to evaluate on")
    if sampling.temperature == 0 and n > 1:
        raise ForgeError(f"{n} greedy completions are the same {n} times: take one sample, or a temperature above 0")


def protocol(task, problems, sampling: Sampling, n: int, split: str, thinking: bool, engine) -> dict:
    """All that a score depends on, besides the model: without it two scores cannot be compared."""
    texts = "\n".join(p.question + "\t" + p.answer for p in problems)
    decoding = {k: v for k, v in asdict(sampling).items() if k != "logprobs"}
    return {
        "task": task.name, "split": split,
        "problems": len(problems), "problems_sha256": _digest(texts),
        "instruction": task.instruction, "thinking": thinking, **decoding, "n": n,
        "extractor_sha256": extractor_sha256(),
        "engine": type(engine).__name__, "versions": versions(),
    }


def extractor_sha256() -> str:
    """The hash of answers.py: scores that were read by different rules cannot be compared."""
    return _digest(inspect.getsource(answers))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def during_run(run, step: int, engine, tokenizer, task, max_new_tokens: int) -> None:
    """Greedy and one sample at the training temperature on the first held-out problems, appended to eval.jsonl."""
    problems = task.test[:run.cfg.eval_problems]
    if not problems:
        return
    record = {"step": step}
    for name, temperature in (("greedy", 0.0), ("sampled", run.cfg.temperature)):
        score = evaluate(engine, tokenizer, task, problems, Sampling(max_new_tokens, temperature, seed=12345))
        record[name] = {k: getattr(score, k) for k in ("accuracy", "low", "high", "truncated", "length", "seconds")}
        score.save(run.folder / f"score-{name}-step-{step}.json")
    run.append("eval", record)
