"""What is printed and drawn at the end of a run: a broken line is named, it does not end in a traceback."""
import json

import pytest

from rrlforge import report
from rrlforge.errors import ForgeError

LINE = {"step": 0, "reward": 0.5, "length": 9.0, "entropy": 0.3, "step_s": 2.0, "rollout_s": 1.0, "train_s": 1.0, "sync_s": 0.0,
        "tokens": 90, "memory_gib": 1.0}
SCORE = {"accuracy": 0.5, "low": 0.4, "high": 0.6}


def write(folder, name, *records):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def test_a_summary_says_scores_seconds_and_speed(tmp_path):
    write(tmp_path, "metrics", LINE, {**LINE, "step": 1})
    write(tmp_path, "eval", {"step": 0, "greedy": SCORE, "sampled": SCORE})
    text = report.summary(tmp_path)
    assert "50.0% [40.0%, 60.0%] (step 0)" in text and "2 steps in 4.0 s" in text and "90 tok/s" in text


@pytest.mark.parametrize("change", [{"reward": None}, {"reward": "x"}, {"length": []}, {"step": True}])
def test_a_metrics_line_without_its_figures_is_named(tmp_path, change):
    write(tmp_path, "metrics", LINE, {**LINE, **change})
    with pytest.raises(ForgeError, match="metrics.jsonl:2: a record without"):
        report.summary(tmp_path)


@pytest.mark.parametrize("line", [{"step": 0}, {"step": 0, "greedy": 1, "sampled": SCORE}, {"step": 0, "greedy": {}, "sampled": SCORE}])
def test_an_evaluation_without_its_score_is_named(tmp_path, line):
    write(tmp_path, "metrics", LINE)
    write(tmp_path, "eval", line)
    with pytest.raises(ForgeError, match="eval.jsonl:1: a record without greedy.accuracy"):
        report.summary(tmp_path)
