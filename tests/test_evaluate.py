"""Intervals and pass@k against theory; an evaluation of a scripted engine."""
import itertools
import math
import random

import pytest

from rrlforge import evaluate as ev
from rrlforge import tasks
from rrlforge.engines import Completions, Sampling
from rrlforge.errors import ForgeError


@pytest.mark.parametrize("k,n", [(0, 10), (10, 10), (7, 10), (354, 1319)])
def test_wilson_solves_its_own_equation(k, n):
    """Wilson's borders are the p at which (k/n - p)^2 = z^2 p (1 - p) / n."""
    z = 1.959963984540054
    for p in ev.wilson(k, n):
        assert (k / n - p) ** 2 == pytest.approx(z * z * p * (1 - p) / n, abs=1e-12)


def test_wilson_covers_as_promised():
    rng = random.Random(0)
    hits = sum(low <= 0.3 <= high for low, high in
               (ev.wilson(sum(rng.random() < 0.3 for _ in range(80)), 80) for _ in range(2000)))
    assert 0.93 < hits / 2000 < 0.97


def test_pass_at_k_equals_counting_all_subsets():
    for n, c in itertools.product(range(1, 8), range(8)):
        if c > n:
            continue
        for k in range(1, n + 1):
            subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
            assert ev.pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("call", [lambda: ev.wilson(3, 0), lambda: ev.wilson(5, 3), lambda: ev.pass_at_k(4, 5, 1),
                                  lambda: ev.pass_at_k(4, 1, 5), lambda: ev.paired_difference([1], [1, 0])])
def test_impossible_counts_are_refused(call):
    with pytest.raises(ForgeError):
        call()


def test_clustered_interval_lies_between_one_and_all_samples_counting():
    rng = random.Random(1)
    alike = [rng.choice([0, 4]) for _ in range(200)]           # four samples, always the same: worth one
    free = [sum(rng.random() < 0.5 for _ in range(4)) for _ in range(200)]
    width = lambda pair: pair[1] - pair[0]  # noqa: E731
    assert width(ev.clustered_wilson(alike, 4)) == pytest.approx(width(ev.wilson(sum(alike) / 4, 200)), rel=0.02)
    assert width(ev.clustered_wilson(free, 4)) == pytest.approx(width(ev.wilson(sum(free), 800)), rel=0.15)


def test_paired_difference_is_tighter_than_two_intervals_when_scores_agree():
    before = [1, 0] * 200
    after = [1, 1] + before[2:]
    diff, low, high = ev.paired_difference(before, after)
    assert diff == pytest.approx(1 / 400)
    assert low < diff < high and high - low < 0.02
    assert ev.paired_difference(before, before) == (0.0, 0.0, 0.0)


class Tokenizer:
    pad_token_id, chat_template = 0, "toy"

    def apply_chat_template(self, messages, tokenize=True, **_):
        return [1, 2] if tokenize else messages[-1]["content"]

    def __call__(self, text, **_):
        return {"input_ids": [1, 2]}

    def batch_decode(self, ids, **_):
        return [rf"\boxed{{{row[0]}}}" for row in ids]


class Scripted:
    """Answers 7 for prompt 0 always, for prompt 1 every second time, never for prompt 2; the last one is cut."""

    def generate(self, prompt_ids, n, sampling):
        ids = [[7 if p == 0 or (p == 1 and s % 2) else 5] for p in range(len(prompt_ids)) for s in range(n)]
        return Completions(ids, [[0.0]] * len(ids), ["stop"] * (len(ids) - 1) + ["length"])


def make_task():
    problems = [tasks.Problem(f"问题 {i}", "7") for i in range(3)]
    return tasks.Task("toy", "", problems, problems, 8)


def test_an_evaluation_counts_right_samples_and_saves_its_protocol(tmp_path):
    task = make_task()
    score = ev.evaluate(Scripted(), Tokenizer(), task, task.test, Sampling(8, 1.0, seed=3), n=4)
    assert score.right == [4, 2, 0]
    assert score.accuracy == pytest.approx(0.5)
    assert score.pass_k[4] == pytest.approx(2 / 3)
    assert score.pass_k[2] == pytest.approx((1 + (1 - 1 / math.comb(4, 2)) + 0) / 3)
    assert score.truncated == pytest.approx(1 / 12)
    assert {"task", "problems_sha256", "temperature", "seed", "extractor_sha256", "versions"} <= set(score.protocol)
    score.save(tmp_path / "s.json")
    assert ev.load_score(tmp_path / "s.json") == score


def test_several_greedy_samples_are_refused():
    task = make_task()
    with pytest.raises(ForgeError, match="same 4 times"):
        ev.evaluate(Scripted(), Tokenizer(), task, task.test, Sampling(8, 0.0), n=4)


def test_a_broken_score_file_is_named(tmp_path):
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(ForgeError, match="s.json is no saved score"):
        ev.load_score(tmp_path / "s.json")


@pytest.mark.parametrize("trials", [1, 3, 20, 512, 1319])
def test_an_interval_holds_its_share_when_all_or_none_are_right(trials):
    assert ev.wilson(trials, trials)[1] >= 1.0 and ev.wilson(0, trials)[0] <= 0.0
