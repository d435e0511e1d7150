"""The memory ledger: what a GRPO step on one card needs, in GiB (2**30 bytes), by arithmetic alone.

It follows what forge.py does in one process, beside an engine in another:

* Resident: weights, optimiser states, the reference model, the bf16 buffers that weight sync sends from. Full training keeps
  fp32 weights, which are the master copy too (16 B a parameter with gradients and Adam); LoRA keeps a bf16 base and fp32
  adapters; QLoRA an NF4 base (0.516 B a parameter with double quantisation, arXiv 2305.14314).
* Gradients: there from the first micro-batch to the optimiser step.
* Kept for backward: with activation checkpointing one residual stream a layer, without it all that autograd saves. The bytes
  a token are those of transformers' Qwen3 and Qwen2 layers under bf16 autocast, counted tensor by tensor; tests/test_vram.py
  counts them again on a real step.
* Passing: the largest thing on top, in whichever phase is worst: logits of one chunk in backward, one layer computed again,
  the head after a checkpointed forward, the reference's forward, the gradient of the embedding.
* The engine is told its share (engine_gib): weights, its own overhead, and KV cache. vLLM takes ENGINE_OVER_GIB on top of it.

The functions that take `s`, a flat dict (a `Plan` as dict), are translated into the JavaScript of the book's calculator
(tojs.py), so they hold to its subset of Python.
"""
from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from rrlforge.errors import ForgeError
from rrlforge.tojs import to_js

GIB = 2**30
CONTEXT_GIB = 0.74      # CUDA context and loaded kernels of the training process (measured, record vram/forge-steps)
ENGINE_EXTRA_GIB = 0.73  # of the engine's share, neither weights nor KV cache (measured: 8 GiB less weights and 3,603 blocks)
ENGINE_OVER_GIB = 1.19  # what vLLM takes beyond its share: context, CUDA graphs (measured: 9.19 GiB when told 8)
NF4_BYTES = 0.5 + (1 + 4 / 256) / 64  # 4 bits, an 8-bit scale a block of 64, fp32 scales of the scales
MARGIN = 0.05         # fragmentation, as a share of what comes and goes: separates the cases that ran under the cap from those that did not
TIGHT = 0.06          # below this share of the card left over, the verdict is "tight"
CONSTANTS = {"GIB": GIB, "CONTEXT_GIB": CONTEXT_GIB, "ENGINE_EXTRA_GIB": ENGINE_EXTRA_GIB,
             "ENGINE_OVER_GIB": ENGINE_OVER_GIB, "NF4_BYTES": NF4_BYTES, "MARGIN": MARGIN, "TIGHT": TIGHT}


# ---------------------------------------------------------------- shapes

@dataclass(frozen=True)
class Shape:
    """What of a config.json decides memory. head_dim of Qwen3 is NOT hidden / heads.

    bias counts the biases of q, k and v (Qwen2.5); qk_norm the two norms of Qwen3's heads; experts is 0 for a
    dense model, otherwise ffn is the width of one expert and `active` of them work on a token.
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
    active: int = 0


SHAPES = {shape.name: shape for shape in (
    Shape("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072),
    Shape("Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144),
    Shape("Qwen3-4B", 36, 2560, 32, 8, 128, 9728),
    Shape("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, tied=False),
    Shape("Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 768, tied=False, experts=128, active=8),
    Shape("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, bias=True, qk_norm=False),
    Shape("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, bias=True, qk_norm=False),
    Shape("Qwen2.5-3B", 36, 2048, 16, 2, 128, 11008, bias=True, qk_norm=False),
    Shape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, vocab=152_064, tied=False, bias=True, qk_norm=False),
)}
MODEL_TYPES = {"qwen3": (False, True), "qwen3_moe": (False, True), "qwen2": (True, False), "llama": (False, False),
               "mistral": (False, False)}


def shape_of_config(config: dict, name: str = "config.json") -> Shape:
    """The shape that a Hugging Face config.json describes. `ForgeError` names what is missing or unknown."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ForgeError(f"{name}: model_type {kind!r}; the ledger knows {', '.join(MODEL_TYPES)}")
    bias, qk_norm = MODEL_TYPES[kind]
    experts = config.get("num_experts", 0)
    wanted = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
              "ffn": "moe_intermediate_size" if experts else "intermediate_size", "vocab": "vocab_size"}
    values = {}
    for field, key in wanted.items():
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**7:
            raise ForgeError(f"{name}: {key} is {value!r}: a whole number in [1, 10000000] expected")
        values[field] = value
    kv_heads = config.get("num_key_value_heads") or values["heads"]
    head_dim = config.get("head_dim") or values["hidden"] // values["heads"]
    return Shape(Path(config.get("_name_or_path") or name).name, kv_heads=kv_heads, head_dim=head_dim, bias=bias, qk_norm=qk_norm,
                 tied=bool(config.get("tie_word_embeddings", False)), experts=experts, active=config.get("num_experts_per_tok", 0) if experts else 0,
                 **values)


def find_shape(name: str) -> Shape:
    """A known model ("Qwen3-0.6B", "Qwen/Qwen3-0.6B"), or a folder or file with a config.json."""
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_text("utf8"))
        except ValueError as error:
            raise ForgeError(f"{path}: not JSON ({error})") from None
        return shape_of_config(config if isinstance(config, dict) else {}, str(path))
    known = {k.lower(): v for k, v in SHAPES.items()}
    if name.split("/")[-1].lower() in known:
        return known[name.split("/")[-1].lower()]
    raise ForgeError(f"no model {name!r}: name a folder with config.json, or one of {', '.join(SHAPES)}")


# ---------------------------------------------------------------- the formulas (also JavaScript)

def body_parameters(s):
    """Parameters of all layers and the last norm."""
    q = s["heads"] * s["head_dim"]
    kv = s["kv_heads"] * s["head_dim"]
    attention = s["hidden"] * (2 * q + 2 * kv) + s["bias"] * (q + 2 * kv) + s["qk_norm"] * 2 * s["head_dim"]
    mlp = 3 * s["hidden"] * s["ffn"] * max(s["experts"], 1) + s["hidden"] * s["experts"]
    return s["layers"] * (attention + mlp + 2 * s["hidden"]) + s["hidden"]


def embedding_parameters(s):
    """Parameters of the embedding and, where it is a matrix of its own, the head."""
    return s["vocab"] * s["hidden"] * (1 if s["tied"] else 2)


def parameters(s):
    """All parameters; tied embeddings count once."""
    return body_parameters(s) + embedding_parameters(s)


def adapter_parameters(s):
    """Parameters of LoRA on every linear layer: rank x (inputs + outputs)."""
    q = s["heads"] * s["head_dim"]
    kv = s["kv_heads"] * s["head_dim"]
    attention = (s["hidden"] + q) + 2 * (s["hidden"] + kv) + (q + s["hidden"])
    mlp = 3 * (s["hidden"] + s["ffn"]) * max(s["experts"], 1)
    return s["layers"] * s["rank"] * (attention + mlp)


def kv_bytes(s):
    """Bytes of bf16 KV cache for one token."""
    return 2 * s["layers"] * s["kv_heads"] * s["head_dim"] * 2


def rows_in_batch(s):
    """Rows of one micro-batch: as many of `length` tokens as token_budget holds, at least one."""
    return max(1, s["budget"] // s["length"])


def layer_bytes(s):
    """Bytes a token that autograd keeps for one layer without checkpointing.

    Full: of each norm its input in fp32 and what its weight multiplies in bf16 (12 H), a
    bf16 copy of its input for each linear layer (10 H), q and k before and after their
    norms and for attention, v, attention's output; gate, silu, up and their product (8 F).
    """
    q = s["heads"] * s["head_dim"]
    kv = s["kv_heads"] * s["head_dim"]
    ffn = 8 * s["ffn"] * max(s["active"], 1)
    small = 4 * (2 * s["heads"] + s["kv_heads"] + 2)
    if s["method"] == "full":
        heads = (10 if s["qk_norm"] else 4) * (q + kv)
        return 22 * s["hidden"] + heads + ffn + small
    heads = (10 if s["qk_norm"] else 6) * q + (8 if s["qk_norm"] else 4) * kv
    return 18 * s["hidden"] + heads + ffn + small + 14 * s["rank"]


def layer_again_bytes(s):
    """Bytes a token at the worst moment of one checkpointed layer: computed again, then gone back through. In full
    training the gradient of the stream is as large as the layer's input, which is among what is kept already."""
    q = s["heads"] * s["head_dim"]
    kv = s["kv_heads"] * s["head_dim"]
    ffn = s["ffn"] * max(s["active"], 1)
    mlp = layer_bytes(s) + (4 * ffn if s["method"] == "full" else 8 * ffn + 6 * s["hidden"])
    attention = 26 * s["hidden"] + (22 * q + 12 * kv if s["qk_norm"] else 12 * q + 4 * kv)
    return max(mlp, attention)


def ledger(s):
    """GiB of every block at the worst moment of a step, and what that moment is."""
    full = 1 if s["method"] == "full" else 0
    count = parameters(s)
    body = body_parameters(s)
    head = s["vocab"] * s["hidden"]
    tuned = count if full else adapter_parameters(s)
    if full:
        weights = 4 * count
    else:
        base = 2 if s["method"] == "lora" else NF4_BYTES
        weights = base * body + 2 * embedding_parameters(s) + 4 * tuned
    gradients = 4 * tuned
    states = tuned * (8 if s["optimizer"] == "adamw" else 2 + 8 / 256)
    reference = 4 * count if full and s["reference"] else 0
    sync = 2 * count if full and s["engine_gib"] > 0 else 0

    tokens = rows_in_batch(s) * s["length"]
    chunk = min(s["chunk"], tokens)
    logits = chunk * s["vocab"]
    stream = 2 * s["hidden"]
    last = tokens * (10 if full else 6) * s["hidden"]  # the last norm, and the hidden states that the head reads
    casts = 2 * (body if full else tuned)              # autocast's bf16 copies of what is trained
    dequantised = 2 * s["hidden"] * s["ffn"] if s["method"] == "qlora" else 0
    if s["checkpointing"]:
        kept = tokens * s["layers"] * stream + last
        again = tokens * layer_again_bytes(s) - last + (2 * body / s["layers"] + (4 * head if s["tied"] else 0) if full else 0) + dequantised
        forward = casts + (2 * head if full else 0) + 8 * logits
    else:
        kept = tokens * s["layers"] * layer_bytes(s) + last + casts
        again = (4 * head if full and s["tied"] else 0) + tokens * ((4 if full else 8) * s["ffn"] * max(s["active"], 1) + 8 * s["hidden"]) - last + dequantised
        forward = 0
    backward = 16 * logits + (2 * head * (2 if chunk < tokens else 1) if full else 0)
    embedding = (12 if s["tied"] else 4) * head + tokens * 8 * s["hidden"] - kept if full else 0
    second = 2 * count + 8 * logits if reference else 0
    passing = max(again, forward, backward, embedding, second, 0)
    moment = "layer"
    if passing == forward:
        moment = "forward"
    if passing == embedding:
        moment = "embedding"
    if passing == second:
        moment = "reference"
    if passing == backward:
        moment = "logits"

    trainer = (weights + gradients + states + reference + sync + kept + passing) / GIB + CONTEXT_GIB
    margin = MARGIN * (kept + passing) / GIB
    engine = s["engine_gib"] + (ENGINE_OVER_GIB if s["engine_gib"] > 0 else 0)
    if s["sleep"]:  # while it samples, weights and optimiser stay, gradients and activations do not: what that needs beyond a step
        awake = (weights + states + reference + sync) / GIB + CONTEXT_GIB + engine
        engine = max(0, awake - trainer - margin)
    total = trainer + margin + engine
    engine_weights = s["engine_bytes"] * count / GIB if s["engine_gib"] > 0 else 0
    cache = max(0, s["engine_gib"] - engine_weights - ENGINE_EXTRA_GIB)
    return {"weights": weights / GIB, "gradients": gradients / GIB, "optimizer": states / GIB, "reference": reference / GIB, "sync": sync / GIB,
            "kept": kept / GIB, "passing": passing / GIB, "moment": moment, "context": CONTEXT_GIB, "margin": margin, "engine": engine,
            "engine_weights": engine_weights, "engine_kv": cache, "engine_rows": math.floor(cache * GIB / (kv_bytes(s) * s["length"])),
            "trainer": trainer, "total": total, "left": s["card_gib"] - s["desktop_gib"] - total}


def verdict(s):
    """2: fits; 1: fits with less than 6 % of the card to spare; 0: does not fit, or the engine holds no row."""
    found = ledger(s)
    if found["left"] < 0 or (s["engine_gib"] > 0 and found["engine_rows"] < 1):
        return 0
    return 1 if found["left"] < TIGHT * s["card_gib"] else 2


def most_rows(s):
    """The largest micro-batch in rows of `length` tokens that fits; 0 when not even one does."""
    if ledger({**s, "budget": s["length"]})["left"] < 0:
        return 0
    low = 1
    high = 2
    while ledger({**s, "budget": high * s["length"]})["left"] >= 0 and high < 65536:
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if ledger({**s, "budget": middle * s["length"]})["left"] >= 0:
            low = middle
        else:
            high = middle
    return low


def longest_row(s):
    """The longest prompt plus completion, in tokens, that fits as a micro-batch of one row; 0 when not even 16 do."""
    low = 0
    high = 262144
    while high - low > 16:
        middle = (low + high) // 2
        if ledger({**s, "length": middle, "budget": middle})["left"] >= 0:
            low = middle
        else:
            high = middle
    return low


def first_turn(s):
    """What to turn first when a plan does not fit: the first change, from cheap to dear, after which it does.

    "" when it fits already; "engine" when the engine's share holds not one row; "model" when nothing here helps.
    """
    found = ledger(s)
    if s["engine_gib"] > 0 and found["engine_rows"] < 1:
        return "engine"
    if found["left"] >= 0:
        return ""
    a = {**s, "checkpointing": 1}
    if ledger(a)["left"] >= 0:
        return "checkpointing"
    b = {**a, "budget": max(s["length"], s["budget"] // 4)}
    if ledger(b)["left"] >= 0:
        return "budget"
    c = {**b, "chunk": min(s["chunk"], 256)}
    if ledger(c)["left"] >= 0:
        return "chunk"
    d = {**c, "reference": 0}
    if ledger(d)["left"] >= 0:
        return "reference"
    e = {**d, "sleep": 1}
    if ledger(e)["left"] >= 0:
        return "sleep"
    f = {**e, "optimizer": "adamw8bit"}
    if ledger(f)["left"] >= 0:
        return "adamw8bit"
    g = {**d, "method": "lora" if s["method"] == "full" else "qlora"}
    if ledger(g)["left"] >= 0:
        return g["method"]
    return "model"


FORMULAS = (body_parameters, embedding_parameters, parameters, adapter_parameters, kv_bytes, rows_in_batch, layer_bytes, layer_again_bytes,
            ledger, verdict, most_rows, longest_row, first_turn)


def javascript() -> str:
    """The formulas above as JavaScript, for the calculator."""
    return to_js(*FORMULAS, constants=CONSTANTS)


# ---------------------------------------------------------------- plans

METHODS, OPTIMIZERS = ("full", "lora", "qlora"), ("adamw", "adamw8bit")
RANGES = {"length": (16, 262144), "budget": (16, 10**8), "chunk": (1, 10**7), "rank": (1, 1024), "engine_gib": (0, 1024),
          "card_gib": (1, 1024), "desktop_gib": (0, 64), "engine_bytes": (0.25, 4)}


@dataclass(frozen=True)
class Plan:
    """One training on one card. Names are those of `GRPOConfig` where it has them; a bad value raises `ForgeError`.

    length          prompt plus completion of the longest row, tokens
    budget          token_budget: padded tokens in a micro-batch
    engine_gib      share of the rollout engine on the same card; 0: none. sleep: it is freed while training, and then
                    the larger of sampling and training counts
    engine_bytes    bytes a weight in the engine (2: bf16, about 0.55: 4 bits)
    card_gib        what CUDA sees of the card; desktop_gib of it are taken by others
    """

    shape: Shape
    method: str = "full"
    length: int = 1024
    budget: int = 8192
    checkpointing: bool = True
    chunk: int = 512
    rank: int = 16
    optimizer: str = "adamw"
    reference: bool = False
    engine_gib: float = 8.0
    engine_bytes: float = 2.0
    sleep: bool = False
    card_gib: float = 31.36
    desktop_gib: float = 0.0

    def __post_init__(self):
        for name, choices in (("method", METHODS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in choices:
                raise ForgeError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
                raise ForgeError(f"{name} is {value!r}: outside [{low:g}, {high:g}]")

    def flat(self) -> dict:
        """The plan as the flat dict of numbers and strings that the formulas take."""
        values = {**dataclasses.asdict(self.shape), **{k: v for k, v in vars(self).items() if k != "shape"}}
        return {k: int(v) if isinstance(v, bool) else v for k, v in values.items()}

    def ledger(self) -> dict:
        return ledger(self.flat())

    @property
    def mark(self) -> str:
        """✅, ⚠️ or ❌."""
        return MARKS[verdict(self.flat())]

    def change(self, **values) -> Plan:
        return dataclasses.replace(self, **values)


MARKS = ("❌", "⚠️", "✅")
BLOCKS = {"weights": "权重", "gradients": "梯度", "optimizer": "优化器", "reference": "参考模型", "sync": "同步缓冲", "kept": "激活",
          "passing": "临时量", "engine": "引擎", "context": "CUDA 上下文", "margin": "碎片余量"}
COLORS = {"weights": "#0072B2", "gradients": "#56B4E9", "optimizer": "#009E73", "reference": "#CC79A7", "sync": "#8C6BB1",
          "kept": "#E69F00", "passing": "#D55E00", "engine": "#6B7280", "context": "#A8A29E", "margin": "#D6D3D1"}
MOMENTS = {"logits": "logits 反向", "layer": "过一层", "forward": "前向结束", "embedding": "词表梯度", "reference": "参考模型前向"}


def parameter_count(shape: Shape) -> int:
    """All parameters of `shape`."""
    return parameters(Plan(shape).flat())


def kv_bytes_per_token(shape: Shape, bytes_each: float = 2.0) -> float:
    """Bytes of KV cache for one token: a key and a value for every KV head of every layer."""
    return kv_bytes(Plan(shape).flat()) / 2 * bytes_each


def report(plan: Plan) -> str:
    """The ledger as lines of text: blocks, total, verdict, what else fits, what to turn first."""
    flat, found = plan.flat(), plan.ledger()
    free = plan.card_gib - plan.desktop_gib
    lines = [f"{plan.shape.name} · {plan.method} · {plan.length} tokens a row, {rows_in_batch(flat)} rows a micro-batch, "
             f"{parameters(flat) / 1e9:.3f} B parameters"]
    lines += [f"  {name:10s} {found[name]:7.2f} GiB" + (f"  (worst moment: {found['moment']})" if name == "passing" else "")
              for name in BLOCKS if found[name]]
    lines.append(f"  {'total':10s} {found['total']:7.2f} GiB of {free:.2f}: {plan.mark}  left {found['left']:.2f} GiB")
    if plan.engine_gib:
        lines.append(f"  the engine's {plan.engine_gib:g} GiB: weights {found['engine_weights']:.2f}, KV cache {found['engine_kv']:.2f} = "
                     f"{found['engine_rows']} rows of {plan.length} tokens")
    lines.append(f"  largest micro-batch {most_rows(flat)} rows; longest single row {longest_row(flat)} tokens")
    if turn := first_turn(flat):
        lines.append(f"  turn first: {ENGLISH_TURNS[turn]}")
    return "\n".join(lines)


ENGLISH_TURNS = {"engine": "--engine-gib up: it holds not one row", "checkpointing": "--checkpointing",
                 "budget": "--checkpointing and a quarter of --budget", "chunk": "also --chunk 256", "reference": "also no reference model",
                 "sleep": "also --sleep: the engine frees its memory while training", "adamw8bit": "also --optimizer adamw8bit",
                 "lora": "--method lora", "qlora": "--method qlora", "model": "a smaller model"}


# ---------------------------------------------------------------- the calculator's form

def calculator_spec(cards: list[tuple[str, float]]) -> dict:
    """What the form asks and shows (tojs.form_html); `cards` are (name, GiB seen by CUDA), the first is chosen."""
    start = Plan(SHAPES["Qwen3-0.6B"])

    def number(name: str, label: str, whole: bool = True) -> dict:
        low, high = RANGES[name]
        return {"name": name, "label": label, "value": getattr(start, name), "low": low, "high": high, "whole": whole}

    def choice(name: str, label: str, options: list[tuple[str, object]]) -> dict:
        return {"name": name, "label": label, "options": [{"text": text, "value": value} for text, value in options]}

    shapes = [(name, {k: int(v) if isinstance(v, bool) else v for k, v in dataclasses.asdict(shape).items()}) for name, shape in SHAPES.items()]
    fields = [choice("model", "模型", shapes), choice("method", "训法", [("全参", "full"), ("LoRA", "lora"), ("QLoRA（4 bit 基座）", "qlora")]),
              choice("card_gib", "显卡", [(f"{name}（{gib:g} GiB）", gib) for name, gib in cards]),
              number("length", "题目加回答（token）"), number("budget", "token_budget"), number("chunk", "logit_chunk"),
              {"name": "checkpointing", "label": "激活重算", "value": True}, {"name": "reference", "label": "参考模型", "value": False},
              choice("optimizer", "优化器", [("AdamW fp32", "adamw"), ("AdamW 8 bit", "adamw8bit")]),
              number("rank", "LoRA 的 rank"), number("engine_gib", "引擎 engine_gib", False),
              choice("engine_bytes", "引擎里的权重", [("bf16", 2), ("4 bit", 0.55)]),
              {"name": "sleep", "label": "训练时引擎休眠", "value": False}, number("desktop_gib", "桌面占用 GiB", False)]
    notes = [{"key": "engine_rows", "text": "引擎里的 KV 缓存同时放得下 {} 条这么长的回答。", "positive": True},
             {"call": "most_rows", "text": "micro-batch 最多放 {} 条。", "positive": True, "otherwise": "micro-batch 一条也放不下。"},
             {"call": "longest_row", "text": "一条最长能到 {} 个 token（micro-batch 里只有它）。", "positive": True},
             {"call": "first_turn", "text": "先动这个：{}。", "texts": TURNS}]
    return {"title": "显存账本", "unit": "GiB", "main": "ledger", "functions": ["ledger", "verdict", "most_rows", "longest_row", "first_turn", "parameters"],
            "fields": fields, "blocks": [{"key": k, "label": BLOCKS[k], "color": COLORS[k]} for k in BLOCKS], "limit": "card_gib",
            "taken": "desktop_gib", "verdict": {"call": "verdict", "texts": ["❌ 放不下", "⚠️ 勉强", "✅ 放得下"]},
            "moments": {"block": "passing", "key": "moment", "texts": MOMENTS}, "notes": notes}


TURNS = {"": "", "engine": "把 engine_gib 调大，现在一条回答的缓存也放不下", "checkpointing": "开激活重算", "budget": "开激活重算，再把 token_budget 降到四分之一",
         "chunk": "上面都做，logit_chunk 降到 256", "reference": "上面都做，再去掉参考模型", "sleep": "上面都做，再让引擎在训练时休眠",
         "adamw8bit": "上面都做，优化器再换成 8 bit", "lora": "改用 LoRA", "qlora": "改用 QLoRA", "model": "换小一号的模型"}


# ---------------------------------------------------------------- prediction beside measurement

def beside_measured(record: dict) -> list[dict]:
    """Each case of the record vram/forge-steps with the ledger's prediction, in GiB: what torch held at the worst moment of a
    step, without context, engine and margin. error is (predicted - measured) / measured."""
    series, rows = record["series"], []
    for i, name in enumerate(series["case"]):
        case = {k: series[k][i] for k in ("method", "length", "budget", "checkpointing", "chunk", "rank", "reference")}
        found = Plan(SHAPES[series["model"][i]], **case).ledger()
        predicted, measured = found["trainer"] - CONTEXT_GIB, series["peak_gib"][i]
        rows.append({"case": name, "model": series["model"][i], **case, "predicted": predicted, "measured": measured,
                     "error": (predicted - measured) / measured, "fits": series["fits"][i], "held_out": series["held_out"][i]})
    return rows
