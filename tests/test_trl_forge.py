"""The same task on TRL: settings carry over, and it trains."""
from pathlib import Path

import pytest

from rrlforge import models, runs, schedule, tasks, trl_forge
from rrlforge.config import GRPOConfig
from rrlforge.errors import ForgeError


def options(micro_batch=8, **settings):
    return trl_forge.options(GRPOConfig(**settings), Path("x"), micro_batch, 48, 100)


def test_settings_carry_over_by_their_meaning():
    o = options(prompts_per_step=4, group_size=8, beta=0.04, clip_high=0.28, loss_agg="sequence", advantage_scale="none",
                rewards="correct=1,format=0.2")
    assert o["gradient_accumulation_steps"] == o["steps_per_generation"] == 4 and o["num_generations"] == 8
    assert (o["beta"], o["epsilon"], o["epsilon_high"], o["loss_type"]) == (0.04, 0.2, 0.28, "grpo")
    assert (o["scale_rewards"], o["reward_weights"]) == ("none", [1.0, 0.2])
    assert not o["vllm_importance_sampling_correction"] and options(importance_cap=2.0)["vllm_importance_sampling_correction"]


def test_a_micro_batch_that_does_not_divide_the_step_is_refused():
    with pytest.raises(ForgeError, match="must divide the 160"):
        options(micro_batch=7)


def test_trl_sees_the_prompts_of_forge_in_the_same_order():
    cfg = GRPOConfig(steps=3, prompts_per_step=4)
    task, tokenizer = tasks.load_task("arith"), models.load_tokenizer("tiny")
    data = trl_forge.dataset(cfg, task, tokenizer)
    want = [p for step in range(3) for p in schedule.pick(task.train, step, 4, 0)]
    assert data["golds"] == [p.answer for p in want]
    assert tokenizer(data["prompt"][5], add_special_tokens=False)["input_ids"] == tasks.prompt_ids(tokenizer, want[5], task)


def test_trl_trains_tiny_on_a_cpu_and_writes_the_names_of_forge(tmp_path):
    cfg = GRPOConfig(steps=2, prompts_per_step=4, eval_problems=0, reference_every=0)
    folder = trl_forge.train(cfg, tmp_path / "run", micro_batch=8)
    lines = runs.load_metrics(folder)
    assert [m["step"] for m in lines] == [0, 1]
    assert all(0 <= m["accuracy"] == m["reward"] <= 1 and m["grad_norm"] > 0 and m["step_s"] > 0 and m["length"] > 1 for m in lines)
    assert (folder / "model" / "model.safetensors").exists()
    before, after = (models.load_model(name)[0].state_dict() for name in ("tiny", str(folder / "model")))
    assert any((before[k] != after[k]).any() for k in before)
