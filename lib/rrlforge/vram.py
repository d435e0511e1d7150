"""The memory ledger: what a GRPO step on one card needs, in GiB (2**30 bytes), by arithmetic alone."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What of a config.json decides memory. head_dim of Qwen3 is NOT hidden / heads.

    bias counts the biases of q, k and v (Qwen2.5); qk_norm the two norms of Qwen3's heads; experts is 0 for a
    dense model, otherwise ffn is the width of one expert.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 151_936
    tied: bool = True
    bias: bool = False
    qk_norm: bool = True
    experts: int = 0


SHAPES = {shape.name: shape for shape in (
    Shape("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072),
    Shape("Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144),
    Shape("Qwen3-4B", 36, 2560, 32, 8, 128, 9728),
    Shape("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, tied=False),
    Shape("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, bias=True, qk_norm=False),
    Shape("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, bias=True, qk_norm=False),
)}


def parameter_count(shape: Shape) -> int:
    """All parameters of `shape`; tied embeddings count once (facts checked against transformers in the tests)."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = shape.hidden * (2 * q + 2 * kv) + (q + 2 * kv if shape.bias else 0) + (2 * shape.head_dim if shape.qk_norm else 0)
    mlp = 3 * shape.hidden * shape.ffn * max(shape.experts, 1) + shape.hidden * shape.experts
    block = attention + mlp + 2 * shape.hidden
    return shape.layers * block + shape.hidden + shape.vocab * shape.hidden * (1 if shape.tied else 2)


def kv_bytes_per_token(shape: Shape, bytes_each: float = 2.0) -> float:
    """Bytes of KV cache for one token: a key and a value for every KV head of every layer."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * bytes_each
