"""Record baseline/gsm8k: where a model stands before training, and how much of that is the protocol.

All test problems: greedy twice, `SAMPLES` completions at temperature 1, greedy under other prompts; every
completion is read by several extractors. One engine serves all, so that nothing else differs.
"""
from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from rrlforge import answers, engines, evaluate, models, records, tasks
from rrlforge.measure.recipe import Recipe

SAMPLES = 4
PROMPTS = {
    "boxed": None,                                       # the task's own instruction
    "none": "",
    "sharps": "Please reason step by step, and write your final answer after ####.",
    "answer only": r"Give only the final answer within \boxed{}.",
    "Chinese": r"请一步一步推理，把最后的答案写进 \boxed{}。",
}
LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def only_box(text: str) -> str | None:
    return answers.extract_answer(text) if "\\boxed" in text else None


def after_sharps(text: str) -> str | None:
    """lm-evaluation-harness's strict-match for gsm8k: `#### (\\-?[0-9\\.\\,]+)`."""
    found = re.search(r"#### (-?[0-9.,]+)", text)
    return answers.extract_answer(found[1]) if found else None


def last_number(text: str) -> str | None:
    found = LAST_NUMBER.findall(text)
    return answers.extract_answer(found[-1]) if found else None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "rule": answers.extract_answer, "box": only_box, "sharps": after_sharps, "last number": last_number}


def read_by(extract: Callable[[str], str | None], texts: list[str], problems: list, n: int) -> dict:
    """Accuracy with its interval when `extract` reads the completions; and how many held no answer for it."""
    found = [extract(text) for text in texts]
    hits = [a is not None and answers.is_correct(a, problems[i // n].answer) for i, a in enumerate(found)]
    right = [sum(hits[i:i + n]) for i in range(0, len(hits), n)]
    low, high = evaluate.clustered_wilson(right, n)
    return {"accuracy": round(sum(hits) / len(hits), 5), "low": round(low, 5), "high": round(high, 5),
            "no_answer": round(sum(a is None for a in found) / len(found), 5)}


def disagreements(texts: list[str], problems: list, each: int = 2) -> list[dict]:
    """Completions that the extractors read differently: at most `each` of every pattern of right and wrong."""
    kept: dict[tuple[bool, ...], list[dict]] = {}
    for place, (text, problem) in enumerate(zip(texts, problems)):
        found = {key: extract(text) for key, extract in EXTRACTORS.items()}
        right = tuple(a is not None and answers.is_correct(a, problem.answer) for a in found.values())
        if len(set(right)) > 1 and len(kept.setdefault(right, [])) < each:
            kept[right].append({"problem": place, "question": problem.question, "gold": problem.answer, "text": text, "found": found})
    return sum(kept.values(), [])


def measure(name: str) -> dict:
    model = os.environ.get("RRLFORGE_MODEL") or models.default_model()
    task = tasks.load_task("arith" if model.startswith("tiny") else "gsm8k")
    problems = task.test[:int(os.environ.get("RRLFORGE_PROBLEMS", "0")) or None]
    limit = task.max_new_tokens if model.startswith("tiny") else 400
    engine, tokenizer = engines.standalone(model, problems, task, limit + 64)  # room for a longer instruction
    greedy, sampled = (engines.Sampling(limit, t, seed=12345, logprobs="none") for t in (0.0, 1.0))
    runs = [("greedy", task, greedy, 1), ("greedy again", task, greedy, 1), ("sampled", task, sampled, SAMPLES)]
    runs += [(f"prompt: {key}", replace(task, instruction=text), greedy, 1) for key, text in PROMPTS.items() if text is not None]
    figures, series = {"problems": len(problems), "samples": SAMPLES, "max_new_tokens": limit,
                       "extractor_sha256": evaluate.extractor_sha256()}, {}
    for label, variant, sampling, n in runs:
        done = engine.generate([tasks.prompt_ids(tokenizer, p, variant) for p in problems], n, sampling)
        texts = tokenizer.batch_decode(done.token_ids, skip_special_tokens=True)
        row = {key: read_by(extract, texts, problems, n) for key, extract in EXTRACTORS.items()}
        hits = [answers.is_correct(text, problems[i // n].answer) for i, text in enumerate(texts)]
        right = [sum(hits[i:i + n]) for i in range(0, len(hits), n)]
        series[f"{label}/right"] = right
        series[f"{label}/extractors"] = [{"extractor": key, **value} for key, value in row.items()]
        if label == "greedy":
            series["examples"] = disagreements(texts, problems)
        figures[label] = {**row["rule"], "truncated": round(done.finish_reason.count("length") / len(texts), 5),
                          "length": round(done.tokens / len(texts), 1), "instruction": variant.instruction}
        if n > 1:
            figures[label] |= {f"pass@{k}": round(sum(evaluate.pass_at_k(n, c, k) for c in right) / len(right), 5) for k in (1, 2, 4)}
        print(label, figures[label], flush=True)
    figures["greedy answers that differ between two runs"] = sum(
        a != b for a, b in zip(series["greedy/right"], series["greedy again/right"]))
    engine.close()
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    label = os.environ.get("RRLFORGE_MODEL_LABEL", Path(model).name)
    data = f"{task.name}, the first {len(problems)} test problems, {asdict(greedy)['max_new_tokens']} new tokens at most"
    return {"figures": figures, "series": series, "origin": records.origin(device, label, data, f"rrlforge record {name}")}


RECIPES = {"baseline/gsm8k": Recipe("GSM8K before training: greedy, sampled, other prompts and extractors (about 4 minutes)", measure)}
