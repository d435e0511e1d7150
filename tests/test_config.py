"""Settings: ranges, names, nearest names; the schedule that follows from them."""
import dataclasses
import math

import pytest

from rrlforge.config import PRESETS, GRPOConfig, from_dict, parse_rewards, to_dict
from rrlforge.errors import ForgeError
from rrlforge.schedule import learning_rate, pick, rollout_seed


@pytest.mark.parametrize("field", [f for f in dataclasses.fields(GRPOConfig) if f.metadata["low"] is not None],
                         ids=lambda f: f.name)
def test_a_number_outside_its_range_names_the_range(field):
    for bad in (field.metadata["low"] - 1, field.metadata["high"] * 2 + 1, *([math.nan, math.inf] if field.type == "float" else [])):
        with pytest.raises(ForgeError, match=rf"{field.name} is .*outside \["):
            GRPOConfig(**{field.name: bad})


@pytest.mark.parametrize("bad", [dict(steps="8"), dict(steps=8.5), dict(steps=True), dict(mask_truncated=1), dict(model=None)])
def test_a_wrong_type_is_named(bad):
    with pytest.raises(ForgeError, match="expected"):
        GRPOConfig(**bad)


def test_a_choice_names_the_choices_and_the_nearest():
    with pytest.raises(ForgeError, match="sequence, token, constant.*did you mean token"):
        GRPOConfig(loss_agg="tokens")


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ForgeError, match="unknown setting 'group_sise': did you mean group_size"):
        from_dict({"group_sise": 8})


def test_settings_survive_the_round_trip():
    cfg = GRPOConfig(lr=1e-5, loss_agg="constant")
    assert from_dict(to_dict(cfg)) == cfg


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name):
    from_dict(PRESETS[name])


def test_rewards_are_read_as_names_and_weights():
    assert parse_rewards("correct=1, format=0.2") == {"correct": 1.0, "format": 0.2}
    for bad in ("correct=x", "=1", "correct=inf", ""):
        with pytest.raises(ForgeError, match="write name=number"):
            parse_rewards(bad)


def test_beta_without_a_reference_is_refused():
    with pytest.raises(ForgeError, match="needs the reference"):
        GRPOConfig(beta=0.04, reference_every=0)


def test_every_epoch_sees_each_problem_once_in_a_new_order():
    problems = list(range(10))
    seen = [p for step in range(5) for p in pick(problems, step, 4, seed=0)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == problems
    assert seen[:10] != seen[10:]
    assert seen == [p for step in range(5) for p in pick(problems, step, 4, seed=0)]
    assert seen[:10] != [p for step in range(5) for p in pick(problems, step, 4, seed=1)][:10]


def test_rollout_seeds_do_not_meet():
    assert len({rollout_seed(seed, step) for seed in range(5) for step in range(1000)}) == 5000


def test_learning_rate_warms_up_then_falls_linearly_to_its_end():
    cfg = GRPOConfig(lr=1.0, steps=100, warmup_steps=10, lr_end=0.1)
    rates = [learning_rate(step, cfg) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[99] == pytest.approx(0.1) and rates[55] == pytest.approx(1 - 0.9 * 45 / 89)
    short = GRPOConfig(lr=1.0, steps=3, warmup_steps=10)
    assert [learning_rate(step, short) for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert GRPOConfig(warmup_steps=0) and learning_rate(0, GRPOConfig(lr=1.0, warmup_steps=0)) == 1.0


@pytest.mark.parametrize("value", [10**400, -1, float("nan"), float("inf")])
def test_a_number_beyond_all_ranges_is_one_short_line(value):
    name = "seed" if isinstance(value, int) else "lr"
    with pytest.raises(ForgeError, match="outside") as error:
        GRPOConfig(**{name: value})
    assert len(str(error.value)) < 120
