r"""Rewards: TRL's call shape, the format rule, weights, and completions of every sort."""
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrlforge import rewards
from rrlforge.errors import ForgeError
from rrlforge.rewards import REWARDS, correctness, format_reward, register, score

ODD = [None, b"\\boxed{18}", [], {}, 18, float("nan"), [None], [[]], [{}],
       [{"role": "assistant", "content": None}],
       [{"role": "assistant", "content": [None, {}, [], "\\boxed{18}"]}],
       [{"role": "assistant", "content": [{"type": "text", "text": None}, {"type": ["text"], "text": "18"}]}],
       [{"role": "assistant", "content": [{"type": "image_url", "text": "\\boxed{18}"}]}], "", "\ud800", "\0",
       "9" * 10**6, "\\boxed{" * 10**5, "{" * 10**5, object(),
       [{"role": "assistant", "content": [{"type": "text", "text": "9"}] * 10**5}]]


def test_correctness_is_one_or_zero_row_by_row():
    completions = ["\\boxed{18}", "#### 3", "18", "\\boxed{18"]
    assert correctness(completions, ["18", "-3", "18.0", "18"]) == [1.0, 0.0, 1.0, 0.0]


def test_trl_call_shape_with_conversations_and_extra_columns():
    conversations = [[{"role": "assistant", "content": "\\boxed{18}"}],
                     [{"role": "assistant", "content": "\\boxed{18}"}, {"role": "tool", "content": "9"},
                      {"role": "assistant", "content": "\\boxed{19}"}]]
    call = dict(prompts=["p", "p"], completions=conversations, completion_ids=[[1], [2]],
                golds=["18", "18"], question=["q", "q"], trainer_state=None, log_extra=None, log_metric=None)
    assert correctness(**call) == [1.0, 0.0]
    assert format_reward(**call) == [1.0, 1.0]


@pytest.mark.parametrize(("content", "right", "formed"), [
    ([{"type": "text", "text": "\\boxed{18}"}], 1.0, 1.0),
    ([{"type": "text", "text": "9 * 2 = \\box"}, {"type": "text", "text": "ed{18}"}], 1.0, 1.0),
    ([{"type": "text", "text": "\\boxed{18}"}, {"type": "image_url", "image_url": {"url": "x"}}], 1.0, 1.0),
    ([{"type": "text", "text": "18"}], 1.0, 0.0), ([{"type": "text", "text": "\\boxed{19}"}], 0.0, 1.0),
    ([], 0.0, 0.0), ("\\boxed{18}", 1.0, 1.0),
])
def test_a_content_in_parts_is_read_as_its_text(content, right, formed):
    completions = [[{"role": "assistant", "content": content}]]
    assert correctness(completions, ["18"]) == [right]
    assert format_reward(completions) == [formed]


@pytest.mark.parametrize(("inside", "reward"), [
    *((empty, 0.0) for empty in (
        "", " ", "{}", "{{}}", ",", ".", "?", "\\,", "\\text{}", "\\text{ }", "\\quad", "{,}", "\\$", "\\%",
        "\\ldots", "-", "，", "_", "\\mathbf{\\text{}}", "\u3000")),
    *((filled, 1.0) for filled in (
        "18", "{18}", "x", "\\text{eggs}", "\\pi", "\\alpha", "\\sqrt{2}", "\\frac{1}{2}", "１８", "苹果",
        "12, 13", "½", "\\$18", "-3")),
])
def test_a_box_that_holds_no_letter_or_digit_is_not_filled(inside, reward):
    assert format_reward(["\\boxed{" + inside + "}"]) == [reward]


@pytest.mark.parametrize("unit", ["{}", ",", "\\text{}", "\\a", "\\frac{ ", " ", "°"])
@pytest.mark.parametrize("name", REWARDS)
def test_a_megabyte_of_hostile_text_is_rewarded_in_milliseconds(name, unit):
    text = "\\boxed{" + unit * (3990 // len(unit)) + "}" + unit * (10**6 // len(unit))
    completion = [{"role": "assistant", "content": [{"type": "text", "text": text}]}]
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        REWARDS[name](completions=[completion], golds=["18"])
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.050


@pytest.mark.parametrize(("text", "reward"), [
    ("9 * 2 = 18\n\\boxed{18}", 1.0), ("So $\\boxed{18}$.", 1.0), ("**\\boxed{18}**\n", 1.0),
    ("\\[ \\boxed{18} \\]", 1.0), ("答案是 \\boxed{18}。", 1.0),
    ("<think>\\boxed{20}</think>\\boxed{18}", 1.0), ("\\boxed{\\text{eggs}}", 1.0),
    ("18", 0.0), ("", 0.0), ("\\boxed{18", 0.0), ("\\boxed{}", 0.0), ("\\boxed{ }", 0.0),
    ("\\boxed{18} eggs", 0.0), ("\\boxed{12} \\boxed{15}", 0.0),
    ("\\boxed{\\boxed{5}}", 0.0), ("<think>\\boxed{18}", 0.0), ("<think>\\boxed{18}</think>", 0.0),
    ("\\boxed{12} then \\boxed{15", 0.0),
])
def test_format_is_one_box_that_closes_the_answer(text, reward):
    assert format_reward([text]) == [reward]


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("i", range(len(ODD)))
def test_no_completion_makes_a_reward_raise(name, i):
    assert REWARDS[name](completions=[ODD[i]], golds=["18"]) == [0.0]


KEYS = st.sampled_from(["role", "content", "type", "text"])
ANYTHING = st.recursive(st.none() | st.booleans() | st.floats() | st.binary() | st.text(),
                        lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@settings(deadline=None)
@given(st.lists(ANYTHING, max_size=5), st.text())
def test_rewards_are_finite_for_anything(completions, gold):
    totals, parts = score(completions, [gold] * len(completions), {"correct": 1.0, "format": 0.2})
    assert len(totals) == len(completions) == len(parts["correct"]) == len(parts["format"])
    assert all(type(r) is float and math.isfinite(r) for r in totals + parts["correct"] + parts["format"])


def test_score_weighs_the_parts_and_returns_them_unweighted():
    completions = ["\\boxed{18}", "18", "\\boxed{3}", "no"]
    totals, parts = score(completions, ["18"] * 4, {"correct": 1.0, "format": 0.25})
    assert totals == [1.25, 1.0, 0.25, 0.0]
    assert parts == {"correct": [1.0, 1.0, 0.0, 0.0], "format": [1.0, 0.0, 1.0, 0.0]}


def test_no_completions_give_no_rewards():
    assert score([], [], {"correct": 1}) == ([], {"correct": []})


@pytest.mark.parametrize(("golds", "weights", "message"), [
    (["18"], {"corect": 1.0}, "unknown reward 'corect': did you mean correct"),
    (["18"], {"formatting": 1.0}, "did you mean format"),
    (["18"], {}, "no reward named"),
    (["18"], {"correct": math.nan}, "finite"),
    (["18", "19"], {"correct": 1.0}, "1 completions but 2 golds"),
    ([18], {"correct": 1.0}, r"golds\[0\] is int"),
])
def test_a_wrong_call_is_refused_in_one_line(golds, weights, message):
    with pytest.raises(ForgeError, match=message) as refusal:
        score(["18"], golds, weights)
    assert "\n" not in str(refusal.value)


# ---- rewards of one's own
def short(completions, **_):
    return [1.0 / len(c) for c in completions]


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(rewards, "REWARDS", dict(REWARDS))


def test_a_reward_of_ones_own_is_weighed_like_the_others_and_can_be_replaced(own):
    register("short", short)
    totals, parts = score(["ab", "18"], ["18"] * 2, {"correct": 1.0, "short": 2.0})
    assert totals == [1.0, 2.0] and parts["short"] == [0.5, 0.5]
    register("short", lambda completions, **_: [0.0] * len(completions))
    assert score(["ab"], ["18"], {"short": 1.0})[0] == [0.0]


@pytest.mark.parametrize(("name", "message"), [
    ("correct", "'correct' is the library's own"), ("a=1", "letters, digits"), ("", "letters, digits"), ("短", "letters, digits"),
])
def test_a_name_that_is_taken_or_cannot_stand_in_a_config_is_refused(name, message, own):
    with pytest.raises(ForgeError, match=message):
        register(name, short)
    assert rewards.REWARDS == REWARDS


def test_a_reward_that_gives_too_few_numbers_is_named(own):
    register("lazy", lambda completions, **_: [1.0])
    with pytest.raises(ForgeError, match="reward 'lazy' gave 1 numbers for 2 completions"):
        score(["a", "b"], ["1", "2"], {"lazy": 1.0})
