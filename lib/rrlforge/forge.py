"""GRPO by hand: sample, reward, advantage, log-probs, loss, step, sync. Read it from top to bottom.

The same file trains the tiny model on a CPU and Qwen3-0.6B on one 32 GB card. Where it departs from the
DeepSeekMath formula (arXiv 2402.03300, eq. 3), and why:

1. beta is 0 by default: no reference model, half the forward passes (DAPO, arXiv 2503.14476; Dr. GRPO,
   arXiv 2503.20783). With beta > 0 the KL term is the k3 estimator of eq. 4.
2. loss_agg "token" divides by all tokens of the batch (DAPO eq. 8), so that a long answer is not diluted;
   "sequence" is DeepSeekMath's 1/|o_i|; "constant" is Dr. GRPO's fixed length.
3. The deviation of a group has ddof 1 and 1e-4 beside it, as in TRL. A group with one reward throughout gets
   exactly 0, whatever rounding says.
4. clip_high may differ from clip_low (DAPO's clip-higher).
5. Completions cut at the length limit carry no loss (mask_truncated).
6. Log-probs are taken at the sampling temperature: the ratio compares what was really sampled from.
7. With importance_cap > 0 the loss is multiplied by min(pi_old / pi_engine, cap): the engine computes in
   another precision than the trainer (truncated importance sampling).
8. Rows with advantage 0 are skipped when beta is 0: their gradient is 0. The normaliser still counts them, but
   clip_share and ratio are those of the other rows (of one row where no group has a signal: ratio 1, share 0).
9. Exponents are clamped (ratio at e^20, k3 at +-20) so that nothing overflows; a token beyond that has no gradient.
10. The optimiser is AdamW with gradient clipping, warm-up and linear decay. updates_per_rollout cuts a rollout by
    whole groups, epochs passes over it again; the ratio then leaves 1.

vLLM is asked for the log-probs of one completion a prompt (of all, with importance_cap). Three figures are
measured on the rows that have them: mismatch; entropy = -mean log p over their tokens (an unbiased estimate);
and kl, k3 over 32 evenly spaced rows, the engine's log-probs standing for pi.
"""
from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

from rrlforge import engines, evaluate, models, rewards, schedule, tasks
from rrlforge.config import GRPOConfig, parse_rewards
from rrlforge.runs import Run


@dataclass
class Row:
    """One completion on its way through the step. weight is its share of the loss, per token; engine_logp is None
    where the engine was not asked for it."""

    prompt: list[int]
    completion: list[int]
    engine_logp: list[float] | None
    truncated: bool
    advantage: float = 0.0
    weight: float = 0.0
    old_logp: torch.Tensor | None = None


# ---------------------------------------------------------------- advantage

def group_advantages(scores: torch.Tensor, scale: str = "std") -> torch.Tensor:
    """(B, G) rewards -> (B, G) advantages: minus the group's mean, over its deviation when scale is "std"."""
    centred = scores - scores.mean(1, keepdim=True)
    if scale == "std":
        centred = centred / (scores.std(1, keepdim=True) + 1e-4)
    flat = (scores == scores[:, :1]).all(1, keepdim=True)
    return centred.masked_fill(flat, 0.0)


# ---------------------------------------------------------------- log-probs

def _chunk_logprobs(hidden, targets, head, temperature):
    logits = head(hidden).float() if temperature == 1 else head(hidden).float() / temperature
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def token_logprobs(model, ids: torch.Tensor, mask: torch.Tensor, temperature: float, chunk: int) -> torch.Tensor:
    """Log-probs of the sampled tokens, flat: (B, T) ids and a (B, T-1) bool mask over next tokens -> (N,).

    Only masked places reach the vocabulary, `chunk` at a time, and are computed again in backward: the
    (tokens x vocabulary) logits are never whole in memory. Rows are right-padded, so a causal model needs no
    attention mask: no real token sees a pad.
    """
    stream = torch.bfloat16 if torch.is_autocast_enabled(ids.device.type) else None  # of the residuals, as in vLLM
    embedded = model.get_input_embeddings()(ids).to(dtype=stream)
    hidden = model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, :-1][mask]
    targets, head = ids[:, 1:][mask], model.get_output_embeddings()
    return torch.cat([checkpoint(_chunk_logprobs, h, t, head, temperature, use_reentrant=False)
                      for h, t in zip(hidden.split(chunk), targets.split(chunk))])


# ---------------------------------------------------------------- loss

def k3(ref_logp: torch.Tensor, logp: torch.Tensor) -> torch.Tensor:
    """KL(pi || ref) per token, never negative: r - log r - 1 with r = ref / pi (DeepSeekMath eq. 4)."""
    log_r = (ref_logp - logp).clamp(-20, 20)
    return log_r.exp() - log_r - 1


def grpo_loss(logp, old_logp, advantage, weight, cfg: GRPOConfig, ref_logp=None, engine_logp=None):
    """The clipped surrogate, summed over tokens by their weights. All arguments (N,); returns (loss, clipped)."""
    ratio = (logp - old_logp).clamp(max=20).exp()
    inside = ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high)
    loss = -torch.minimum(ratio * advantage, inside * advantage)
    if cfg.importance_cap > 0:
        loss = loss * (old_logp - engine_logp).clamp(max=math.log(cfg.importance_cap)).exp()
    if cfg.beta > 0:
        loss = loss + cfg.beta * k3(ref_logp, logp)
    clipped = (inside * advantage < ratio * advantage) & (weight > 0)
    return (loss * weight).sum(), clipped


def set_weights(rows: list[Row], cfg: GRPOConfig, max_new_tokens: int) -> None:
    """Per-token loss weights of one optimiser step. They depend on its rows only, never on the micro-batches."""
    kept = [0 if row.truncated and cfg.mask_truncated else len(row.completion) for row in rows]
    for row, length in zip(rows, kept):
        share = {"sequence": len(rows) * max(length, 1), "token": max(sum(kept), 1),
                 "constant": len(rows) * max_new_tokens}[cfg.loss_agg]
        row.weight = 1.0 / share if length else 0.0


# ---------------------------------------------------------------- one step

def micro_batches(rows: list[Row], budget: int) -> list[list[Row]]:
    """Cut rows, sorted by length, so that rows x longest <= budget (a longer single row stands alone)."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: len(r.prompt) + len(r.completion)):
        if not batches or (len(batches[-1]) + 1) * (len(row.prompt) + len(row.completion)) > budget:
            batches.append([])
        batches[-1].append(row)
    return batches


def pad(rows: list[Row], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (B, T) and the mask (B, T-1), true where the next token is part of a completion.

    The mask comes from lengths, not from `ids != pad`: pad may equal an end token, which must be learned.
    """
    width = max(len(r.prompt) + len(r.completion) for r in rows)
    ids = torch.tensor([(r.prompt + r.completion) + [0] * (width - len(r.prompt) - len(r.completion)) for r in rows])
    start = torch.tensor([[len(r.prompt) - 1] for r in rows])
    stop = start + torch.tensor([[len(r.completion)] for r in rows])
    place = torch.arange(width - 1)[None]
    return ids.to(device), ((place >= start) & (place < stop)).to(device)


def forward(model, rows: list[Row], cfg: GRPOConfig) -> torch.Tensor:
    """Log-probs (N,) of the completions of `rows`, in their order; bf16 compute over fp32 weights on CUDA."""
    ids, mask = pad(rows, model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        return token_logprobs(model, ids, mask, cfg.temperature, cfg.logit_chunk)


def spread(rows: list[Row], values: list[float], device) -> torch.Tensor:
    """One value a row -> one value a completion token (N,)."""
    return torch.tensor(values).repeat_interleave(torch.tensor([len(r.completion) for r in rows])).to(device)


def remember(model, rows: list[Row], cfg: GRPOConfig) -> None:
    """Keep the log-probs of the policy that will soon have moved: the denominator of the ratio."""
    for batch in micro_batches(rows, cfg.token_budget):
        with torch.no_grad():
            old = forward(model, batch, cfg)
        for row, logp in zip(batch, old.split([len(r.completion) for r in batch])):
            row.old_logp = logp


def accumulate(model, reference, rows: list[Row], cfg: GRPOConfig, seen: dict) -> float:
    """Backward over all micro-batches of one optimiser step; returns the loss, adds per-token figures to `seen`."""
    device, total = model.device, 0.0
    for batch in micro_batches(rows, cfg.token_budget):
        logp = forward(model, batch, cfg)
        old = logp.detach() if batch[0].old_logp is None else torch.cat([r.old_logp for r in batch])
        engine_logp = torch.tensor([x for r in batch for x in r.engine_logp or [math.nan] * len(r.completion)], device=device)
        with torch.no_grad():
            ref_logp = forward(reference, batch, cfg) if cfg.beta > 0 else None
        loss, clipped = grpo_loss(logp, old, spread(batch, [r.advantage for r in batch], device),
                                  spread(batch, [r.weight for r in batch], device), cfg, ref_logp, engine_logp)
        loss.backward()
        total += float(loss.detach())
        seen["ratio"].append((logp.detach() - old).exp())
        seen["clipped"].append(clipped.float())
        known = spread(batch, [float(r.engine_logp is not None) for r in batch], device) > 0
        seen["mismatch"].append((old - engine_logp).abs()[known])
    return total


def update(model, reference, optimizer, rows: list[Row], cfg: GRPOConfig, max_new_tokens: int) -> dict:
    """Change the weights by one rollout: epochs x updates_per_rollout optimiser steps. Returns their figures."""
    groups = [rows[i:i + cfg.group_size] for i in range(0, len(rows), cfg.group_size)]
    parts = [sum(groups[k::cfg.updates_per_rollout], []) for k in range(min(cfg.updates_per_rollout, len(groups)))]
    if cfg.epochs * len(parts) > 1:
        remember(model, rows, cfg)
    seen, losses, norms = {"ratio": [], "clipped": [], "mismatch": []}, [], []
    for part in parts * cfg.epochs:
        set_weights(part, cfg, max_new_tokens)
        live = [r for r in part if r.weight > 0 and (r.advantage != 0 or cfg.beta > 0)]
        live += [] if any(r.engine_logp for r in live) else part[:1]  # that row moves nothing, and measures the mismatch
        losses.append(accumulate(model, reference, live, cfg, seen))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)))
        if not math.isfinite(losses[-1] + norms[-1]):
            return {"loss": math.nan}
        if norms[-1] > 0:  # without a gradient there is no step, also not by momentum
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    ratio, clipped, mismatch = (torch.cat(values) for values in seen.values())
    return {"loss": sum(losses) / len(losses), "grad_norm": max(norms), "clip_share": float(clipped.mean()),
            "ratio_min": float(ratio.min()), "ratio_max": float(ratio.max()),
            "mismatch": float(mismatch.mean()), "mismatch_max": float(mismatch.max())}


@torch.no_grad()
def measure_kl(reference, rows: list[Row], cfg: GRPOConfig) -> float:
    """Mean k3 to the start over 32 evenly spaced rows, the engine's log-probs standing for pi."""
    known = [r for r in rows if r.engine_logp is not None]
    some = known[::max(1, len(known) // 32)]
    batches = micro_batches(some, cfg.token_budget)
    logp = torch.tensor([x for batch in batches for r in batch for x in r.engine_logp], device=reference.device)
    return float(k3(torch.cat([forward(reference, batch, cfg) for batch in batches]), logp).mean())


# ---------------------------------------------------------------- the loop

def train(cfg: GRPOConfig, folder: str | Path, resume: bool = False) -> Path:
    """Run GRPO as `cfg` says, writing into `folder`; returns it. `resume` goes on from the last checkpoint."""
    task = tasks.load_task(cfg.task_name, cfg.data or None)
    model, tokenizer = models.load_model(cfg.model)
    with Run(folder, cfg, resume) as run:  # the folder is locked, nothing is written yet
        if cfg.activation_checkpointing:
            model.train().gradient_checkpointing_enable({"use_reentrant": False})
        reference = copy.deepcopy(model).eval() if cfg.reference_every else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, cfg.adam_beta2),
                                      weight_decay=cfg.weight_decay, fused=model.device.type == "cuda")
        start = run.restore(model, optimizer) if resume else 0
        limit = cfg.max_new_tokens or task.max_new_tokens
        engine = run.closing(engines.make_engine(cfg, model, tokenizer, task, limit))
        run.begin()
        if start == 0:
            evaluate.during_run(run, 0, engine, tokenizer, task, limit)
        for step in run.progress(range(start, cfg.steps)):
            clock = [time.perf_counter()]
            # sample
            problems = schedule.pick(task.train, step, cfg.prompts_per_step, cfg.seed)
            prompts = [tasks.prompt_ids(tokenizer, p, task) for p in problems]
            done = engine.generate(prompts, cfg.group_size, engines.Sampling(
                limit, cfg.temperature, 1.0, schedule.rollout_seed(cfg.seed, step), "all" if cfg.importance_cap else "first"))
            engine.sleep()
            clock.append(time.perf_counter())
            # reward
            texts = tokenizer.batch_decode(done.token_ids, skip_special_tokens=True)
            golds = [p.answer for p in problems for _ in range(cfg.group_size)]
            scores, parts = rewards.score(texts, golds, parse_rewards(cfg.rewards))
            # advantage
            grouped = torch.tensor(scores, dtype=torch.float64).view(-1, cfg.group_size)
            advantages = group_advantages(grouped, cfg.advantage_scale).flatten().tolist()
            rows = [Row(prompts[i // cfg.group_size], done.token_ids[i], done.logprobs[i], done.finish_reason[i] == "length",
                        advantages[i]) for i in range(len(texts))]
            # log-probs, loss, step
            kl = measure_kl(reference, rows, cfg) if cfg.reference_every and step % cfg.reference_every == 0 else None
            schedule.set_learning_rate(optimizer, step, cfg)
            figures = update(model, reference, optimizer, rows, cfg, limit)
            run.check(step, figures, scores, rows, texts)
            clock.append(time.perf_counter())
            # sync
            engine.wake()
            engine.sync(model)
            clock.append(time.perf_counter())
            run.log_step(step, problems, texts, scores, parts, done, figures, kl, clock)
            if cfg.eval_every and (step + 1) % cfg.eval_every == 0 and step + 1 < cfg.steps:
                evaluate.during_run(run, step + 1, engine, tokenizer, task, limit)
            if cfg.checkpoint_every and (step + 1) % cfg.checkpoint_every == 0 and step + 1 < cfg.steps:
                run.save(step + 1, model, optimizer)
        if start < cfg.steps:
            evaluate.during_run(run, cfg.steps, engine, tokenizer, task, limit)
            run.save(cfg.steps, model, optimizer)
        run.save_model(model, tokenizer)
    return run.folder
