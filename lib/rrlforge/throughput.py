"""Tokens a second: a sweep over concurrent requests with prefill and decode apart, and the roofline beside it.

Decoding one token for each of c requests reads all weights once and every request's KV cache once, and multiplies
each weight with c vectors. A step takes at least as long as the slower of the two (Williams et al. 2009, "Roofline").
"""
from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rrlforge.errors import ForgeError
from rrlforge.vram import Shape, kv_bytes_per_token, parameter_count

CONCURRENCY = (1, 8, 32, 128, 256, 512)


@dataclass(frozen=True)
class Point:
    """One concurrency of a sweep; the lists hold one value a repeat, tokens a second over all requests.

    prefill     prompt tokens a second, until every request has its first token
    decode      new tokens a second after that first token
    total       new tokens a second over the whole call: what a rollout waits for
    """

    concurrency: int
    prompt_tokens: int
    new_tokens: int
    prefill: list[float]
    decode: list[float]
    total: list[float]


@dataclass(frozen=True)
class Ceiling:
    """The roofline at one concurrency: bytes and operations of one decode step, and the tok/s they allow."""

    weight_bytes: float
    kv_bytes: float
    flops: float
    tokens_s: float
    bound: str  # "bandwidth" or "compute"


def weight_bytes_read(shape: Shape, bytes_each: float = 2.0) -> float:
    """Bytes of weights that one decode step reads: all but the input embedding, of which it looks up a few rows."""
    untied_embedding = 0 if shape.tied else shape.vocab * shape.hidden
    return bytes_each * (parameter_count(shape) - untied_embedding)


def roofline(shape: Shape, concurrency: int, context: float, bandwidth_gb_s: float,
             tflops: float, bytes_each: float = 2.0) -> Ceiling:
    """The most tok/s that decoding can reach: `concurrency` requests of `context`
    tokens each (mean over the decode).

    bandwidth_gb_s is 1e9 bytes a second, tflops 1e12 operations a second of dense bf16.
    """
    weights = weight_bytes_read(shape, bytes_each)
    kv = concurrency * context * kv_bytes_per_token(shape, bytes_each)
    attention = 4 * context * shape.layers * shape.heads * shape.head_dim
    flops = concurrency * (2 * weights / bytes_each + attention)
    by_bytes = (weights + kv) / (bandwidth_gb_s * 1e9)
    by_flops = flops / (tflops * 1e12)
    bound = "bandwidth" if by_bytes >= by_flops else "compute"
    return Ceiling(weights, kv, flops, concurrency / max(by_bytes, by_flops), bound)


def mean_context(prompt_tokens: int, new_tokens: int) -> float:
    """Mean length of what a decode step attends to, over the new_tokens - 1 steps after the first token."""
    return prompt_tokens + new_tokens / 2


def sweep(generate: Callable[[list[list[int]], int], int], vocab: int, concurrency=CONCURRENCY, prompt_tokens: int = 128,
          new_tokens: int = 256, repeats: int = 3, seed: int = 0, clock: Callable[[], float] = time.perf_counter):
    """Yield a `Point` for each concurrency, as it comes.

    generate(prompts, max_new_tokens) decodes one completion a prompt, never stopping early, and returns the number
    of new tokens. Every prompt is random and used once, so that no prefix cache helps. One call of each kind warms
    up. `ForgeError` when a completion is short: it met an end token, and the rates would lie.
    """
    check_sweep(concurrency, prompt_tokens, new_tokens, repeats)
    rng = random.Random(seed)

    def timed(count: int, limit: int) -> float:
        prompts = [[rng.randrange(vocab) for _ in range(prompt_tokens)] for _ in range(count)]
        start = clock()
        done = generate(prompts, limit)
        seconds = clock() - start
        if done != count * limit:
            raise ForgeError(f"{count} requests of {limit} new tokens gave {done}: an end token came; bench with none")
        return seconds

    for count in concurrency:
        point = Point(count, prompt_tokens, new_tokens, [], [], [])
        timed(count, 1), timed(count, min(16, new_tokens))
        for _ in range(repeats):
            first, whole = timed(count, 1), timed(count, new_tokens)
            point.prefill.append(count * prompt_tokens / first)
            point.decode.append(count * (new_tokens - 1) / max(whole - first, 1e-9))
            point.total.append(count * new_tokens / whole)
        yield point


def check_sweep(concurrency, prompt_tokens: int, new_tokens: int, repeats: int) -> None:
    """`ForgeError` in one line for a sweep that makes no sense."""
    if not concurrency or not all(isinstance(c, int) and 1 <= c <= 4096 for c in concurrency):
        raise ForgeError(f"concurrency {list(concurrency)}: whole numbers in [1, 4096], at least one")
    for name, value, low, high in (("prompt tokens", prompt_tokens, 1, 131072), ("new tokens", new_tokens, 2, 131072),
                                   ("repeats", repeats, 1, 100)):
        if not low <= value <= high:
            raise ForgeError(f"{name} {value}: outside [{low}, {high}]")


def median_and_spread(values: list[float]) -> tuple[float, float]:
    """(median, (max - min) / median) of the repeats."""
    middle = statistics.median(values)
    return middle, (max(values) - min(values)) / middle


def line(point: Point, ceiling: Ceiling | None = None) -> str:
    """One line of a sweep's table, medians in tok/s."""
    (prefill, _), (decode, spread), (total, _) = (median_and_spread(v) for v in (point.prefill, point.decode, point.total))
    text = f"{point.concurrency:5d} requests  prefill {prefill:9,.0f}  decode {decode:9,.0f} (±{spread / 2:.0%})  rollout {total:9,.0f} tok/s"
    return text + (f"  roofline {ceiling.tokens_s:9,.0f} ({ceiling.bound}), reached {decode / ceiling.tokens_s:.1%}" if ceiling else "")


def measure_machine(device: str = "cpu", seconds: float = 0.5) -> tuple[float, float]:
    """(GB/s, TFLOP/s) that this machine reaches: copying a tensor larger than any cache, and one large matmul.

    The matmul is fp32 on a CPU and bf16 on CUDA. A copy reads and writes, so its bytes count twice.
    """
    import torch

    def best(work: Callable[[], object]) -> float:
        def once() -> float:
            start = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

        once()
        until, times = time.perf_counter() + seconds, [once()]
        while time.perf_counter() < until:
            times.append(once())
        return min(times)

    source = torch.ones(2**26 if device == "cpu" else 2**30, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    moved = best(lambda: target.copy_(source))
    size = 1024 if device == "cpu" else 8192
    a = torch.randn(size, size, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    return 2 * 4 * source.numel() / moved / 1e9, 2 * size**3 / best(lambda: a @ a) / 1e12


def without_end(folder: str | Path, into: str | Path) -> Path:
    """A view of a model's folder in `into` whose config names no end token: vLLM stops on that one unasked."""
    into = Path(into)
    config = json.loads((Path(folder) / "config.json").read_text("utf8"))
    config["eos_token_id"] = None
    (into / "config.json").write_text(json.dumps(config), "utf8")
    for weights in Path(folder).glob("*.safetensors*"):
        (into / weights.name).symlink_to(weights.resolve())
    return into


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what an engine writes while it starts, native code's stderr included; an error brings it all out.

    vLLM also asks for stdout's file number, which a notebook's stdout need not have; the log has one.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", encoding="utf8", errors="replace") as log:
        try:
            os.dup2(log.fileno(), 2)
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                yield
        except BaseException:
            log.flush()
            os.dup2(kept, 2)
            log.seek(0)
            sys.stderr.write(log.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
