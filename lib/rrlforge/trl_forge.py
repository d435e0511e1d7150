"""The task of forge.py on TRL's GRPOTrainer (TRL 1.16): same prompts, order of problems, rewards and settings.

The trainer samples with vLLM in its own process on CUDA (vllm_mode "colocate") and with transformers on a CPU.
metrics.jsonl takes forge.py's names, so that one eye reads both.
"""
from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer

from rrlforge import models, rewards, schedule, tasks
from rrlforge.config import GRPOConfig, parse_rewards
from rrlforge.errors import ForgeError
from rrlforge.runs import Run

LOSS_TYPE = {"sequence": "grpo", "token": "dapo", "constant": "dr_grpo"}
NAMES = {"reward": "reward", "kl": "kl", "entropy": "entropy", "loss": "loss", "grad_norm": "grad_norm", "length": "completions/mean_length",
         "truncated": "completions/clipped_ratio", "flat_groups": "frac_reward_zero_std", "clip_share": "clip_ratio/region_mean",
         "mismatch": "sampling/sampling_logp_difference/mean"}


def options(cfg: GRPOConfig, folder: Path, micro_batch: int, limit: int, longest: int) -> dict:
    """Arguments of `trl.GRPOConfig` that do what `cfg` does. micro_batch: completions in one forward pass."""
    rows = cfg.completions_per_step
    if rows % micro_batch:
        raise ForgeError(f"micro_batch is {micro_batch}: it must divide the {rows} completions of a step")
    if cfg.updates_per_rollout != 1 or cfg.advantage_scale not in ("std", "none"):
        raise ForgeError("TRL is run with one update a rollout: set updates_per_rollout=1")
    cuda = torch.cuda.is_available()
    settings = {
        "output_dir": str(folder / "trl"), "max_steps": cfg.steps, "seed": cfg.seed, "report_to": "none", "save_strategy": "no",
        "logging_steps": 1, "disable_tqdm": True, "shuffle_dataset": False, "bf16": cuda, "use_cpu": not cuda,
        "per_device_train_batch_size": micro_batch, "gradient_accumulation_steps": rows // micro_batch,
        "steps_per_generation": rows // micro_batch, "num_generations": cfg.group_size, "num_iterations": cfg.epochs,
        "max_completion_length": limit, "temperature": cfg.temperature, "top_p": 1.0, "top_k": 0,
        "beta": cfg.beta, "epsilon": cfg.clip_low, "epsilon_high": cfg.clip_high, "loss_type": LOSS_TYPE[cfg.loss_agg],
        "scale_rewards": "group" if cfg.advantage_scale == "std" else "none",
        "mask_truncated_completions": cfg.mask_truncated, "max_grad_norm": cfg.max_grad_norm,
        "vllm_importance_sampling_correction": cfg.importance_cap > 0, "gradient_checkpointing": cfg.activation_checkpointing,
        "reward_weights": list(parse_rewards(cfg.rewards).values()), "use_bias_correction_kl": False,
    }
    if cuda and cfg.engine != "hf":
        total = torch.cuda.get_device_properties(0).total_memory / 2**30
        settings.update(use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=cfg.engine_gib / total,
                        vllm_max_model_length=longest, vllm_enable_sleep_mode=cfg.engine_sleep)
    if cfg.importance_cap > 0:
        settings.update(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=cfg.importance_cap)
    return settings


def dataset(cfg: GRPOConfig, task, tokenizer) -> Dataset:
    """The problems of all steps in forge.py's order. Prompts are templated here: TRL leaves a plain string as it is."""
    rows = [p for step in range(cfg.steps) for p in schedule.pick(task.train, step, cfg.prompts_per_step, cfg.seed)]
    return Dataset.from_dict({"prompt": [tasks.prompt_text(tokenizer, p, task) for p in rows], "golds": [p.answer for p in rows]})


class Metrics(TrainerCallback):
    """One line a step in metrics.jsonl, and the clock of a step: sampling, reward, update and sync together."""

    def __init__(self, run: Run):
        self.run, self.step_s, self.start = run, 0.0, 0.0

    def on_step_begin(self, args, state, control, **_):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.step_s = time.perf_counter() - self.start

    def on_log(self, args, state, control, logs=None, **_):
        if "reward" in logs:
            line = {ours: logs.get(theirs) for ours, theirs in NAMES.items()}
            accuracy = logs.get("rewards/correctness/mean")
            peak = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else None
            self.run.append("metrics", {"step": state.global_step - 1, **line, "accuracy": accuracy, "step_s": self.step_s,
                                        "lr": schedule.learning_rate(state.global_step - 1, self.run.cfg), "memory_gib": peak})


def train(cfg: GRPOConfig, folder: str | Path, micro_batch: int = 8, callbacks: tuple[TrainerCallback, ...] = ()) -> Path:
    """Run GRPO on TRL as `cfg` says, writing into `folder`; returns it. The trained model lies in folder/model.

    micro_batch   completions in one forward pass: TRL cuts by rows, where forge.py cuts by tokens
    """
    task = tasks.load_task(cfg.task_name, cfg.data or None)
    model, tokenizer = models.load_model(cfg.model)
    model.name_or_path = str(models.model_folder(cfg.model))  # where TRL's vLLM reads the architecture and the start
    limit = cfg.max_new_tokens or task.max_new_tokens
    with Run(folder, cfg) as run:
        data = dataset(cfg, task, tokenizer)
        longest = max(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in data["prompt"]) + limit
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, cfg.adam_beta2), weight_decay=cfg.weight_decay,
                                      fused=model.device.type == "cuda")
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.learning_rate(step, cfg) / cfg.lr if cfg.lr else 0.0)
        trainer = GRPOTrainer(model=model, reward_funcs=[rewards.REWARDS[name] for name in parse_rewards(cfg.rewards)],
                              args=TRLConfig(**options(cfg, run.folder, micro_batch, limit, longest)), train_dataset=data,
                              processing_class=tokenizer, optimizers=(optimizer, rate), callbacks=[Metrics(run), *callbacks])
        trainer.remove_callback(PrinterCallback)
        run.engine_gib = 0.0  # vLLM lives in this process
        run.begin()
        trainer.train()
        (run.folder / "log_history.json").write_text(json.dumps(trainer.state.log_history, indent=1), "utf8")
        run.save_model(trainer.model, tokenizer)
    return run.folder
