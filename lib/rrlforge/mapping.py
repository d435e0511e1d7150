"""One knob, five names: what a setting of ours is called in TRL, in slime and Miles, and in verl.

Read in the sources: TRL 1.16.0 (trainer/grpo_config.py), slime 0.3 and Miles 0.1 (utils/arguments.py), verl's
trainer configuration. A default follows its name where it is known. "" says that there is no such name.
"""
from __future__ import annotations

from dataclasses import dataclass

SOURCES = {
    "trl": "TRL 1.16.0, trainer/grpo_config.py",
    "slime": "slime 0.3 and Miles 0.1, utils/arguments.py",
    "verl": "verl, trainer configuration: R = actor_rollout_ref.rollout, A = actor_rollout_ref.actor, G = algorithm",
}


@dataclass(frozen=True)
class Name:
    """One knob. `ours` is the field of GRPOConfig, or what forge.py does, `what` says it in Chinese."""

    ours: str
    what: str
    trl: str
    slime: str
    verl: str


NAMES = (
    Name("group_size", "一道题采几条", "num_generations (8)", "--n-samples-per-prompt (1)", "R.n (1)"),
    Name("prompts_per_step", "一轮几道题", "generation_batch_size / num_generations", "--rollout-batch-size",
         "data.train_batch_size"),
    Name("updates_per_rollout", "一轮更新几次", "steps_per_generation / gradient_accumulation_steps",
         "--num-steps-per-rollout", "data.train_batch_size / A.ppo_mini_batch_size"),
    Name("epochs", "一批用几遍", "num_iterations (1)", "", "A.ppo_epochs (1)"),
    Name("token_budget", "一个 micro-batch 最多几个 token", "", "--max-tokens-per-gpu", "A.ppo_max_token_len_per_gpu"),
    Name("lr", "学习率", "learning_rate (1e-6)", "--lr (1e-6)", "A.optim.lr (1e-6)"),
    Name("max_grad_norm", "梯度裁剪", "max_grad_norm (1.0)", "--clip-grad (1.0)", "A.grad_clip (1.0)"),
    Name("clip_low", "ratio 下界", "epsilon (0.2)", "--eps-clip (0.2)", "A.clip_ratio_low (0.2)"),
    Name("clip_high", "ratio 上界", "epsilon_high (None)", "--eps-clip-high (None)", "A.clip_ratio_high (0.2)"),
    Name("beta", "KL 项的系数", "beta (0)", "--kl-loss-coef (0)", "A.kl_loss_coef (0.001)"),
    Name("advantage_scale", "优势除不除标准差", 'scale_rewards ("group")', "--disable-grpo-std-normalization",
         "G.norm_adv_by_std_in_grpo"),
    Name("loss_agg", "token 怎么平均", 'loss_type ("dapo")', "--calculate-per-token-loss",
         "A.loss_agg_mode (token-mean)"),
    Name("temperature", "采样温度", "temperature (1)", "--rollout-temperature", "R.temperature"),
    Name("max_new_tokens", "回答最长几个 token", "max_completion_length (512)", "--rollout-max-response-len",
         "data.max_response_length"),
    Name("engine_gib", "引擎占多少显存", "vllm_gpu_memory_utilization (0.3)", "--sglang-mem-fraction-static",
         "R.gpu_memory_utilization (0.5)"),
    Name("engine_sleep", "训练时让引擎让出显存", "vllm_enable_sleep_mode (False)", "--offload-rollout",
         "R.free_cache_engine (True)"),
    Name("importance_cap", "引擎与训练器的概率差修正", "vllm_importance_sampling_correction (True)",
         "--use-tis, --tis-clip (2.0)", "G.rollout_correction.rollout_is"),
    Name("group_advantages", "组内优势的写法", "GRPOTrainer + loss_type", "--advantage-estimator (grpo)",
         "G.adv_estimator (gae)"),
    Name("engine.sync", "训练完把权重交给引擎", "vllm_mode (colocate)", "--colocate, update_weights", "hybrid_engine (true)"),
)


def name(ours: str) -> Name:
    """The row of a knob of ours; KeyError if there is none."""
    for row in NAMES:
        if row.ours == ours:
            return row
    raise KeyError(ours)
