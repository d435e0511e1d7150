"""Records of GPU memory: the peak of real forge steps on random weights, each in a process of its own.

A case runs `forge.update` twice (the second has optimiser states) on synthetic rollouts of one length, uncapped, and
notes torch's own counters of its process; then once more under the cap less the engine's share, where torch must
do with what is left: that run says whether the step fits. Nothing of another process on the card enters these
numbers. Only "context" and "engine" need the device's own view: see `device_used`.

Results are appended to RRLFORGE_RUNS/vram-forge-steps.jsonl (default runs/) as they come; a case found there is
read, not repeated. RRLFORGE_CASES picks cases by name ("context,06b-512-32k"), RRLFORGE_JOBS runs so many at once.
"""
from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rrlforge import records
from rrlforge.measure.recipe import Recipe
from rrlforge.vram import CONTEXT_GIB, SHAPES, Shape

CAP_GIB = 31.4     # what CUDA programs see of a 5090
ENGINE_GIB = 8.0   # GRPOConfig.engine_gib
TIMEOUT_S = 120
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """length is prompt plus completion of every row, budget the padded tokens of a micro-batch."""

    name: str
    model: str
    method: str = "full"
    length: int = 1024
    budget: int = 8192
    checkpointing: bool = True
    chunk: int = 512
    reference: bool = False
    rank: int = 16
    held_out: bool = False  # not looked at while the ledger is fitted


CASES = {case.name: case for case in (
    Case("06b-512-8k", "Qwen3-0.6B", length=512),
    Case("06b-512-32k", "Qwen3-0.6B", length=512, budget=32768),
    Case("06b-1024-8k", "Qwen3-0.6B"),
    Case("06b-1024-32k", "Qwen3-0.6B", budget=32768),
    Case("06b-2048-8k", "Qwen3-0.6B", length=2048),
    Case("06b-2048-32k", "Qwen3-0.6B", length=2048, budget=32768),
    Case("06b-512-4k-plain", "Qwen3-0.6B", length=512, budget=4096, checkpointing=False),
    Case("06b-1024-8k-plain", "Qwen3-0.6B", checkpointing=False),
    Case("06b-2048-8k-plain", "Qwen3-0.6B", length=2048, checkpointing=False),
    Case("06b-1024-8k-chunk4k", "Qwen3-0.6B", chunk=4096),
    Case("06b-1024-8k-reference", "Qwen3-0.6B", reference=True),
    Case("05b-512-32k", "Qwen2.5-0.5B", length=512, budget=32768),
    Case("05b-512-8k-plain", "Qwen2.5-0.5B", length=512, checkpointing=False, held_out=True),
    Case("17b-1024-8k", "Qwen3-1.7B"),
    Case("17b-lora-1024-8k", "Qwen3-1.7B", "lora"),
    Case("17b-lora-1024-4k-plain", "Qwen3-1.7B", "lora", budget=4096, checkpointing=False),
    Case("4b-lora-1024-8k", "Qwen3-4B", "lora"),
    Case("4b-lora-1024-16k", "Qwen3-4B", "lora", budget=16384, held_out=True),
    Case("8b-qlora-1024-4k", "Qwen3-8B", "qlora", budget=4096),
    Case("8b-qlora-1024-8k", "Qwen3-8B", "qlora"),
)}
SMALL = Shape("small", 2, 64, 4, 2, 32, 128, vocab=512)  # for a dry run on a CPU


# ---------------------------------------------------------------- in a case's own process

def hf_config(shape: Shape):
    """The transformers config of `shape`, for a model with random weights."""
    from transformers import Qwen2Config, Qwen3Config

    kind = Qwen3Config if shape.qk_norm else Qwen2Config
    config = kind(vocab_size=shape.vocab, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
                  num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
                  intermediate_size=shape.ffn, tie_word_embeddings=shape.tied, max_position_embeddings=40960,
                  bos_token_id=None, eos_token_id=None)
    config.architectures = ["Qwen3ForCausalLM" if shape.qk_norm else "Qwen2ForCausalLM"]
    config._attn_implementation = "sdpa"
    return config


def build(case: Case, shape: Shape, device: str):
    """(model, trainable parameters): fp32 weights for "full"; bf16 or 4-bit base with fp32 adapters otherwise."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if case.method == "full" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(hf_config(shape), dtype=dtype)
    if case.method == "qlora":
        quantise(model, device)
    if case.method != "full":
        from peft import LoraConfig, inject_adapter_in_model

        # in place: forge asks the model itself for its hidden states and its head
        inject_adapter_in_model(LoraConfig(r=case.rank, lora_alpha=2 * case.rank, target_modules=TARGETS), model)
        model.to(device)
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.float()
    model.train()
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if device == "cuda":
        torch.cuda.empty_cache()  # what building took is not the step's
    return model, [p for p in model.parameters() if p.requires_grad]


TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def quantise(model, device: str) -> None:
    """Every linear layer but the head becomes NF4 with double quantisation (QLoRA, arXiv 2305.14314)."""
    import bitsandbytes
    import torch

    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            small = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, bias=module.bias is not None,
                                               compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
            small.weight = bitsandbytes.nn.Params4bit(module.weight.data.to("cpu"), requires_grad=False, quant_type="nf4",
                                                      compress_statistics=True, module=small)
            if module.bias is not None:
                small.bias = module.bias
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, small.to(device))
            module.weight = None


def make_rows(case: Case, shape: Shape, rows: int) -> list:
    """`rows` completions of one length, in groups of 8 with rewards 0 and 1: no row has advantage 0."""
    import torch

    from rrlforge import forge

    prompt = min(128, case.length // 2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab, (rows, case.length), generator=generator).tolist()
    scores = (torch.arange(rows) % 2).double().view(-1, 8)
    advantages = forge.group_advantages(scores).flatten().tolist()
    return [forge.Row(i[:prompt], i[prompt:], [-1.0] * (case.length - prompt), False, a) for i, a in zip(ids, advantages)]


class Counters:
    """torch's counters of this process in GiB; on a CPU its peak RAM stands in, for dry runs."""

    def __init__(self, device: str):
        self.cuda = device == "cuda"

    def now(self) -> float:
        import torch

        return (torch.cuda.memory_allocated() if self.cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) / GIB

    def peak(self) -> float:
        import torch

        return torch.cuda.max_memory_allocated() / GIB if self.cuda else self.now()

    def reserved(self) -> float:
        import torch

        return torch.cuda.max_memory_reserved() / GIB if self.cuda else self.now()

    def reset(self) -> None:
        import torch

        if self.cuda:
            torch.cuda.reset_peak_memory_stats()


def run_case(case: Case, shape: Shape, context_gib: float) -> dict:
    """Measure one case in this process; returns what is written to the record, GiB and seconds."""
    import copy

    import torch

    from rrlforge import engines, forge
    from rrlforge.config import GRPOConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    counters = Counters(device)
    torch.manual_seed(0)
    model, trainable = build(case, shape, device)
    found = {"case": case.name, **{k: v for k, v in dataclasses.asdict(case).items() if k != "name"},
             "parameters": sum(p.numel() for p in model.parameters()) if case.method != "qlora" else None,
             "trainable": sum(p.numel() for p in trainable), "weights_gib": counters.now()}
    reference = copy.deepcopy(model).eval() if case.reference else None
    # VLLMEngine._sync_ipc keeps a bf16 copy of what it sends; LoRA sends no base weights
    buffers = [torch.empty_like(w, dtype=torch.bfloat16) for _, w in engines._weights(model)] if case.method == "full" else []
    optimizer = torch.optim.AdamW(trainable, lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, fused=device == "cuda")
    cfg = GRPOConfig(token_budget=case.budget, logit_chunk=case.chunk, activation_checkpointing=case.checkpointing,
                     beta=0.01 if case.reference else 0.0, reference_every=1 if case.reference else 0)
    per_batch = max(1, case.budget // case.length)
    rows = make_rows(case, shape, 8 * -(-2 * per_batch // 8))  # at least two micro-batches: gradients are there in the second
    limit = case.length - len(rows[0].prompt)
    after_forward, real_loss = [], forge.grpo_loss

    def noting_loss(*args, **kwargs):
        after_forward.append(counters.now())
        return real_loss(*args, **kwargs)

    forge.grpo_loss = noting_loss
    forge.update(model, reference, optimizer, rows, cfg, limit)
    found["resident_gib"] = counters.now()  # weights, reference, sync buffers, optimiser states
    counters.reset()
    start = time.perf_counter()
    figures = forge.update(model, reference, optimizer, rows, cfg, limit)
    if device == "cuda":
        torch.cuda.synchronize()
    found.update(step_s=time.perf_counter() - start, loss=figures["loss"], grad_norm=figures["grad_norm"],
                 after_forward_gib=after_forward[-1], peak_gib=counters.peak(), reserved_gib=counters.reserved(),
                 tokens=len(rows) * case.length, micro_batches=len(after_forward) // 2)
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        found["left_gib"] = left = CAP_GIB - ENGINE_GIB - context_gib
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(left * GIB / total)
        try:
            forge.update(model, reference, optimizer, rows, cfg, limit)
            found["fits"] = True
        except torch.cuda.OutOfMemoryError:
            found["fits"] = False
    return found


def run_context() -> dict:
    """What CUDA itself takes in a training process: the device's count less torch's, after a bf16 step."""
    import torch

    if not torch.cuda.is_available():
        return {"case": "context", "context_gib": 0.0, "by": "no GPU"}
    before = device_used()
    layer = torch.nn.Linear(128, 128).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        q = layer(torch.randn(1, 8, 1024, 128, device="cuda"))
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().logsumexp(-1).sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    torch.cuda.synchronize()
    after, reserved = device_used(), torch.cuda.memory_reserved() / GIB
    by = "nvidia-smi, this process" if str(os.getpid()) in after["apps"] else "nvidia-smi, whole device before and after"
    used = after["apps"].get(str(os.getpid()), after["total"] - before["total"])
    return {"case": "context", "context_gib": used - reserved, "by": by, "before": before, "after": after}


def device_used() -> dict:
    """{"total": GiB of the whole device, "apps": {pid: GiB}} as nvidia-smi says; pids may be another namespace's."""
    def query(what: str) -> list[list[str]]:
        out = subprocess.run(["nvidia-smi", what, "--format=csv,noheader,nounits", "-i", "0"], capture_output=True, text=True, timeout=30)
        return [[x.strip() for x in line.split(",")] for line in out.stdout.splitlines() if line.strip()]

    apps = {pid: float(mib) / 1024 for pid, mib in query("--query-compute-apps=pid,used_memory") if mib.replace(".", "").isdigit()}
    return {"total": float(query("--query-gpu=memory.used")[0][0]) / 1024, "apps": apps}


def worker_memory(worker) -> dict:
    """Run inside vLLM's worker: torch's counters there, GiB."""
    import torch

    return {"allocated": torch.cuda.memory_allocated() / GIB, "reserved": torch.cuda.memory_reserved() / GIB,
            "reserved_max": torch.cuda.max_memory_reserved() / GIB, "pid": os.getpid(),
            "kv_blocks": getattr(worker, "num_gpu_blocks", None) or worker.cache_config.num_gpu_blocks}


def run_engine(shape: Shape) -> dict:
    """What an engine told `ENGINE_GIB` really takes: its process by nvidia-smi, torch's counters inside it."""
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # worker_memory travels to the worker
    import torch

    from rrlforge import engines

    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        hf_config(shape).save_pretrained(folder)
        before = device_used() if cuda else {"total": 0.0, "apps": {}}
        start = time.perf_counter()
        engine = engines.VLLMEngine(folder, [], 512, ENGINE_GIB, dummy=True)
        started = time.perf_counter() - start
        prompts = [[(i * 7 + j) % shape.vocab for j in range(64)] for i in range(32)]
        engine.generate(prompts, 8, engines.Sampling(256 if cuda else 8))
        found = {"case": "engine", "engine_gib_asked": ENGINE_GIB, "start_s": started}
        if cuda:
            after = device_used()
            try:
                inside = engine.llm.collective_rpc(worker_memory)[0]
            except Exception as error:  # the count by nvidia-smi stands without it
                inside = {"pid": -1, "error": str(error)[-200:]}
            new = {pid: gib for pid, gib in after["apps"].items() if pid not in before["apps"]}
            exact = str(inside["pid"]) in new
            found.update(inside=inside, new_apps=new, device_gib=after["total"] - before["total"],
                         own_reserved_gib=torch.cuda.memory_reserved() / GIB,
                         engine_gib=new[str(inside["pid"])] if exact else after["total"] - before["total"],
                         by="nvidia-smi, the engine's process" if exact else
                            "nvidia-smi, whole device before and after: this process's context too")
    return found


def main(argv: list[str]) -> None:
    """`python -m rrlforge.measure.vram CASE CONTEXT_GIB OUT`: append one JSON line to OUT and leave at once."""
    name, context_gib, out = argv[0], float(argv[1]), Path(argv[2])
    small = os.environ.get("RRLFORGE_SMALL") == "1"
    if name == "context":
        found = run_context()
    elif name == "engine":
        found = run_engine(SMALL if small else SHAPES["Qwen3-0.6B"])
    else:
        case = CASES[name]
        if small:
            case = dataclasses.replace(case, length=case.length // 16, budget=case.budget // 64, chunk=64)
        found = run_case(case, dataclasses.replace(SMALL, qk_norm=SHAPES[case.model].qk_norm) if small else SHAPES[case.model], context_gib)
    with out.open("a", encoding="utf8") as file:
        file.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a vLLM process may hang at exit


# ---------------------------------------------------------------- the recipe

def measure_case(name: str, context_gib: float, out: Path) -> None:
    """One case in its own bounded process; a failure becomes a line too."""
    try:
        done = subprocess.run([sys.executable, "-m", "rrlforge.measure.vram", name, str(context_gib), str(out)], capture_output=True,
                              text=True, timeout=300 if name == "engine" else TIMEOUT_S)
        failed = done.returncode != 0 or name not in read(out)
        error = (done.stderr.strip().splitlines() or ["no message"])[-1][:300] if failed else ""
    except subprocess.TimeoutExpired:
        error = "timeout"
    if error:
        with out.open("a", encoding="utf8") as file:
            file.write(json.dumps({"case": name, "error": error}) + "\n")


def read(out: Path) -> dict[str, dict]:
    """Lines of `out` by case, errors left out."""
    return {line["case"]: line for line in read_all(out) if "error" not in line}


def read_all(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text("utf8").splitlines()] if out.exists() else []


def forge_steps(name: str) -> dict:
    folder = Path(os.environ.get("RRLFORGE_RUNS", "runs"))
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name.replace('/', '-')}.jsonl"
    chosen = [c for c in os.environ.get("RRLFORGE_CASES", "").split(",") if c] or ["context", "engine", *CASES]
    missing = {"lora": find_spec("peft") is None, "qlora": find_spec("peft") is None or find_spec("bitsandbytes") is None}
    todo = [c for c in chosen if c not in read(out) and not (c in CASES and missing.get(CASES[c].method))]
    for special in ("context", "engine"):  # alone: they look at the whole device
        if special in todo:
            print(f"{time.strftime('%H:%M:%S')} {special}", flush=True)
            measure_case(special, CONTEXT_GIB, out)
    context_gib = read(out).get("context", {}).get("context_gib") or CONTEXT_GIB
    with ThreadPoolExecutor(int(os.environ.get("RRLFORGE_JOBS", "1"))) as pool:
        def one(case: str) -> None:
            measure_case(case, context_gib, out)
            line = next((one for one in read_all(out)[::-1] if one["case"] == case), {})
            print(f"{time.strftime('%H:%M:%S')} {case:24s} peak {line.get('peak_gib', float('nan')):7.2f} GiB  "
                  f"reserved {line.get('reserved_gib', float('nan')):7.2f}  fits {line.get('fits')} {line.get('error', '')}", flush=True)

        list(pool.map(one, [c for c in todo if c in CASES]))
    return as_record(name, read(out))


def as_record(name: str, lines: dict[str, dict]) -> dict:
    import torch

    done = [c for c in CASES if c in lines]
    columns = ("peak_gib", "reserved_gib", "resident_gib", "weights_gib", "after_forward_gib", "step_s", "fits")
    series = {"case": done, **{k: [_round(lines[c].get(k)) for c in done] for k in columns},
              **{k: [lines[c].get(k) for c in done] for k in ("model", "method", "length", "budget", "checkpointing", "chunk",
                                                             "reference", "rank", "held_out", "trainable")}}
    context, engine = lines.get("context", {}), lines.get("engine", {})
    figures = {"cases": len(done), "unmeasured": [c for c in CASES if c not in lines], "engine_gib_counted": ENGINE_GIB,
               "context_gib": _round(context.get("context_gib")), "context_by": context.get("by"),
               "engine_gib": _round(engine.get("engine_gib")), "engine_by": engine.get("by"), "engine_start_s": _round(engine.get("start_s")),
               "engine_reserved_gib": _round(engine.get("inside", {}).get("reserved")), "kv_blocks": engine.get("inside", {}).get("kv_blocks")}
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return {"figures": figures, "series": series, "origin": records.origin(
        device, "Qwen3 and Qwen2.5 architectures, random weights", "synthetic rollouts", f"rrlforge record {name}", f"{CAP_GIB} GiB")}


def _round(value):
    return round(value, 4) if isinstance(value, float) else value


RECIPES: dict[str, Recipe] = {
    "vram/forge-steps": Recipe("peak GPU memory of real forge steps, full, LoRA and QLoRA, 20 cases (about 6 minutes)", forge_steps),
}


if __name__ == "__main__":
    main(sys.argv[1:])
