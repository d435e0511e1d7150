"""Records of sampling speed: vLLM alone on the card, random weights (only shapes and bytes decide the speed)."""
from __future__ import annotations

import dataclasses
import os
import tempfile
import time

import torch

from rrlforge import hardware, records, throughput
from rrlforge.engines import Sampling, VLLMEngine
from rrlforge.measure.recipe import Recipe
from rrlforge.measure.vram import SMALL, hf_config
from rrlforge.vram import SHAPES, Shape

ENGINE_GIB = 28.0  # what a 32 GB card can give an engine that is alone: 512 requests of 384 tokens hold 21 GiB of KV cache


def rows(shape: Shape, points: list[throughput.Point], card: hardware.Card | None, expected: hardware.Card) -> dict:
    """Series of a sweep: medians, spreads, the roofline of the card measured on, the share reached, and the tok/s
    that the same share would give on `expected` (computed, not measured)."""
    columns: dict[str, list] = {"concurrency": [p.concurrency for p in points]}
    for name in ("prefill", "decode", "total"):
        pairs = [throughput.median_and_spread(getattr(p, name)) for p in points]
        columns[f"{name}_tok_s"], columns[f"{name}_spread"] = [round(m, 1) for m, _ in pairs], [round(s, 4) for _, s in pairs]
        columns[f"{name}_repeats"] = [[round(v, 1) for v in getattr(p, name)] for p in points]
    if card is None:
        return columns
    for point in points:
        context = throughput.mean_context(point.prompt_tokens, point.new_tokens)
        here, there = (throughput.roofline(shape, point.concurrency, context, c.bandwidth_gb_s, c.bf16_tflops) for c in (card, expected))
        share = throughput.median_and_spread(point.decode)[0] / here.tokens_s
        for key, value in (("roofline_tok_s", round(here.tokens_s, 1)), ("roofline_bound", here.bound), ("share", round(share, 4)),
                           ("computed_5090_roofline_tok_s", round(there.tokens_s, 1)),
                           ("computed_5090_tok_s", round(share * there.tokens_s, 1))):
            columns.setdefault(key, []).append(value)
    return columns


def qwen3(name: str) -> dict:
    cuda, small = torch.cuda.is_available(), os.environ.get("RRLFORGE_SMALL") == "1"
    shape = SMALL if small else SHAPES["Qwen3-0.6B"]
    concurrency, prompt, new = ((1, 4), 16, 24) if small else (throughput.CONCURRENCY, 128, 256)
    with tempfile.TemporaryDirectory() as folder:
        hf_config(shape).save_pretrained(folder)
        start = time.perf_counter()
        engine = VLLMEngine(folder, [], prompt + new + 16, ENGINE_GIB, max_rows=max(concurrency), dummy=True)
        start_s = time.perf_counter() - start

        def generate(prompts: list[list[int]], limit: int) -> int:
            return engine.generate(prompts, 1, Sampling(limit, logprobs="none")).tokens

        points = []
        for point in throughput.sweep(generate, shape.vocab, concurrency, prompt, new):
            points.append(point)
            print(f"{time.strftime('%H:%M:%S')} {point.concurrency:4d} requests: prefill {point.prefill} decode {point.decode}", flush=True)
        engine.close()
    device = torch.cuda.get_device_name(0) if cuda else ""
    card = hardware.find(device, torch.cuda.get_device_properties(0).total_memory / 2**30) if cuda else None
    series = rows(shape, points, card, hardware.card("RTX 5090"))
    figures = {"prompt_tokens": prompt, "new_tokens": new, "repeats": len(points[0].decode), "engine_gib": ENGINE_GIB,
               "engine_start_s": round(start_s, 1), "shape": dataclasses.asdict(shape), "card": card.name if card else "",
               "bandwidth_gb_s": card.bandwidth_gb_s if card else 0, "tflops": card.bf16_tflops if card else 0}
    return {"figures": figures, "series": series, "origin": records.origin(
        device, "Qwen3-0.6B architecture, random weights", "random token ids", f"rrlforge record {name}", f"{ENGINE_GIB:g} GiB (engine)")}


RECIPES: dict[str, Recipe] = {
    "toks/qwen3-0.6b": Recipe("vLLM tok/s at 1 to 512 requests, prefill and decode apart, with the roofline (about 3 minutes)", qwen3),
}
