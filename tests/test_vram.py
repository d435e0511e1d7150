"""The memory ledger: parameter counts, the bytes of a real step, verdicts, one-line errors.

`Bytes` counts live tensor storages while forge.update runs on the CPU under bf16 autocast, as it does on a GPU; what
only a GPU has (context, allocator, kernels' scratch) is compared in the record vram/forge-steps.
"""
import dataclasses
import json
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from rrlforge import forge, records, vram
from rrlforge.config import GRPOConfig
from rrlforge.errors import ForgeError
from rrlforge.measure import vram as measure
from rrlforge.vram import GIB, SHAPES, Plan, Shape, verdict

FACTS = {"Qwen3-0.6B": (596_049_920, 440_467_456, 112), "Qwen3-1.7B": (1_720_574_976, 1_409_410_048, 112),
         "Qwen3-4B": (4_022_468_096, 3_633_511_936, 144), "Qwen3-8B": (8_190_735_360, 6_946_075_648, 144),
         "Qwen2.5-0.5B": (494_032_768, 357_898_112, 12)}


@pytest.mark.parametrize("name", FACTS)
def test_parameters_and_kv_cache_of_known_models(name):
    total, body, kib = FACTS[name]
    flat = Plan(SHAPES[name]).flat()
    assert (vram.parameters(flat), vram.body_parameters(flat), vram.kv_bytes(flat)) == (total, body, kib * 1024)


@pytest.mark.parametrize("shape", [Shape("a", 3, 64, 4, 2, 32, 96, 500), Shape("b", 2, 96, 6, 2, 16, 160, 300, tied=False, bias=True, qk_norm=False)])
def test_parameters_are_those_that_transformers_counts_and_the_config_gives_the_shape_back(shape):
    from transformers import AutoModelForCausalLM

    config = measure.hf_config(shape)
    model = AutoModelForCausalLM.from_config(config)
    assert vram.parameter_count(shape) == sum(p.numel() for p in model.parameters())
    again = vram.shape_of_config(json.loads(config.to_json_string(use_diff=False)))
    assert dataclasses.replace(again, name=shape.name) == shape


class Bytes(TorchDispatchMode):
    """Bytes of all storages that live, and their peak."""

    def __init__(self, tensors):
        super().__init__()
        self.live = self.peak = 0
        self.seen = weakref.WeakKeyDictionary()
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage not in self.seen:
            size = self.seen[storage] = storage.nbytes()
            self.live += size
            weakref.finalize(storage, self.drop, size)

    def drop(self, size):
        self.live -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        self.peak = max(self.peak, self.live)
        return out


def peak_of_a_step(shape: Shape, case, monkeypatch) -> int:
    def forward(model, rows, cfg):
        ids, mask = forge.pad(rows, model.device)
        with torch.autocast("cpu", torch.bfloat16):
            return forge.token_logprobs(model, ids, mask, cfg.temperature, cfg.logit_chunk)

    monkeypatch.setattr(forge, "forward", forward)
    model, trainable = measure.build(case, shape, "cpu")
    optimizer = torch.optim.AdamW(trainable, lr=1e-6, fused=True)
    cfg = GRPOConfig(token_budget=case.budget, logit_chunk=case.chunk, reference_every=0)
    rows = measure.make_rows(case, shape, 8 * -(-2 * (case.budget // case.length) // 8))
    limit = case.length - len(rows[0].prompt)
    forge.update(model, None, optimizer, rows, cfg, limit)
    states = [v for state in optimizer.state.values() for v in state.values()]
    counted = Bytes([p.data for p in model.parameters()] + states)
    with counted:
        forge.update(model, None, optimizer, rows, cfg, limit)
    return counted.peak


QWEN3 = Shape("qwen3", 4, 256, 8, 4, 64, 768, vocab=4000)
QWEN2 = Shape("qwen2", 4, 256, 4, 1, 64, 1024, vocab=4000, tied=False, bias=True, qk_norm=False)


@pytest.mark.parametrize("shape,length,budget,chunk,checkpointing,moment", [
    (QWEN3, 128, 1024, 64, False, "logits"), (QWEN3, 128, 1024, 64, True, "layer"), (dataclasses.replace(QWEN3, vocab=16000), 64, 256, 64, True, "embedding"),
    (QWEN2, 128, 512, 64, False, "logits"), (QWEN2, 128, 1024, 64, True, "layer")])
def test_the_ledger_counts_the_bytes_of_a_real_step(shape, length, budget, chunk, checkpointing, moment, monkeypatch):
    case = measure.Case("test", shape.name, "full", length, budget, checkpointing, chunk)
    plan = Plan(shape, "full", length, budget, checkpointing, chunk, engine_gib=0)
    found = plan.ledger()
    want = (found["trainer"] - vram.CONTEXT_GIB) * GIB
    assert peak_of_a_step(shape, case, monkeypatch) == pytest.approx(want, rel=0.006)
    assert found["moment"] == moment


@pytest.mark.skipif(measure.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_ledger_counts_the_bytes_of_a_lora_step(checkpointing, monkeypatch):
    case = measure.Case("test", "qwen3", "lora", 128, 1024, checkpointing, 64)
    want = (Plan(QWEN3, "lora", 128, 1024, checkpointing, 64, engine_gib=0).ledger()["trainer"] - vram.CONTEXT_GIB) * GIB
    assert peak_of_a_step(QWEN3, case, monkeypatch) == pytest.approx(want, rel=0.03)


def test_the_blocks_add_up():
    for plan in (Plan(SHAPES["Qwen3-0.6B"], reference=True), Plan(SHAPES["Qwen3-8B"], "qlora", sleep=True), Plan(SHAPES["Qwen2.5-7B"], "lora")):
        found = plan.ledger()
        assert found["total"] == pytest.approx(sum(found[name] for name in vram.BLOCKS))
        assert found["left"] == pytest.approx(plan.card_gib - found["total"])


def test_sixteen_bytes_a_parameter():
    found = Plan(SHAPES["Qwen3-0.6B"]).ledger()
    assert (found["weights"] + found["gradients"] + found["optimizer"]) * GIB == pytest.approx(16 * 596_049_920)


def test_the_overviews_table():
    """Its six verdicts for a 5090, each with an engine that holds at least 16 answers of 1,024 tokens."""
    card = dict(length=1024, budget=8192, card_gib=31.36)
    assert Plan(SHAPES["Qwen3-0.6B"], "full", engine_gib=8, **card).mark == "✅"
    assert Plan(SHAPES["Qwen3-1.7B"], "full", engine_gib=7, **card).mark == "❌"
    assert Plan(SHAPES["Qwen3-1.7B"], "lora", engine_gib=7, **card).mark == "✅"
    assert Plan(SHAPES["Qwen3-4B"], "lora", engine_gib=12, **card).mark == "✅"      # the overview: ⚠️
    assert Plan(SHAPES["Qwen3-8B"], "qlora", engine_gib=19, **{**card, "budget": 4096}).mark == "⚠️"
    assert Plan(SHAPES["Qwen3-30B-A3B"], "qlora", engine_gib=18, engine_bytes=0.55, **card).mark == "❌"


def test_more_of_anything_never_needs_less():
    base = Plan(SHAPES["Qwen3-0.6B"])
    for change in (dict(budget=16384), dict(chunk=2048), dict(checkpointing=False), dict(reference=True), dict(engine_gib=9), dict(length=4096, budget=16384)):
        assert base.change(**change).ledger()["total"] > base.ledger()["total"]
    assert base.change(optimizer="adamw8bit").ledger()["total"] < base.ledger()["total"]


def test_an_engine_that_sleeps_still_has_to_sample():
    awake = Plan(SHAPES["Qwen3-0.6B"])
    asleep, found = awake.change(sleep=True), awake.ledger()
    sampling = found["weights"] + found["optimizer"] + found["sync"] + found["context"] + 8 + vram.ENGINE_OVER_GIB
    training = found["trainer"] + found["margin"]
    assert asleep.ledger()["total"] == pytest.approx(max(sampling, training)) and sampling > training
    assert asleep.change(budget=65536).ledger()["engine"] == 0  # now training is the larger
    assert Plan(SHAPES["Qwen3-30B-A3B"], "qlora", engine_gib=18, engine_bytes=0.55, sleep=True).mark == "❌"


@pytest.mark.parametrize("plan", [Plan(SHAPES["Qwen3-0.6B"]), Plan(SHAPES["Qwen3-4B"], "lora", engine_gib=12), Plan(SHAPES["Qwen2.5-0.5B"], checkpointing=False)])
def test_the_largest_batch_and_length_fit_and_one_more_does_not(plan):
    rows = vram.most_rows(plan.flat())
    assert plan.change(budget=rows * plan.length).ledger()["left"] >= 0 > plan.change(budget=(rows + 1) * plan.length).ledger()["left"]
    longest = vram.longest_row(plan.flat())
    assert plan.change(length=longest, budget=longest).ledger()["left"] >= 0 > plan.change(length=longest + 32, budget=longest + 32).ledger()["left"]


def test_the_advice_is_the_first_change_that_helps():
    plan = Plan(SHAPES["Qwen3-0.6B"], budget=32768, checkpointing=False)
    assert verdict(plan.flat()) == 0 and vram.first_turn(plan.flat()) == "checkpointing"
    assert verdict(plan.change(checkpointing=True).flat()) > 0
    assert vram.first_turn(Plan(SHAPES["Qwen3-4B"], "lora", engine_gib=8).flat()) == "engine"
    assert vram.first_turn(Plan(SHAPES["Qwen3-30B-A3B"], "qlora", engine_gib=18, engine_bytes=0.55).flat()) == "model"
    assert vram.first_turn(Plan(SHAPES["Qwen3-0.6B"]).flat()) == ""


@pytest.mark.parametrize("values,message", [
    (dict(length=3), r"length is 3: outside \[16, 262144\]"), (dict(method="lorra"), "choose one of full, lora, qlora"),
    (dict(card_gib=float("nan")), "card_gib is nan: outside"), (dict(rank="8"), "rank is '8'"), (dict(budget=True), "budget is True")])
def test_a_bad_value_is_one_line(values, message):
    with pytest.raises(ForgeError, match=message) as error:
        Plan(SHAPES["Qwen3-0.6B"], **values)
    assert "\n" not in str(error.value)


def test_models_are_found_by_name_file_and_folder(tmp_path):
    assert vram.find_shape("qwen/qwen3-0.6b") == SHAPES["Qwen3-0.6B"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
                                                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                                                      "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}))
    assert dataclasses.replace(vram.find_shape(str(tmp_path)), name="Qwen3-30B-A3B") == SHAPES["Qwen3-30B-A3B"]
    for text, message in (("{", "not JSON"), ("[]", "model_type None"), ('{"model_type": "qwen3"}', "num_hidden_layers is None")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ForgeError, match=message):
            vram.find_shape(str(tmp_path / "config.json"))


def test_all_experts_are_resident():
    shape = SHAPES["Qwen3-30B-A3B"]
    assert vram.parameter_count(shape) == 30_532_122_624
    assert Plan(shape, "lora").ledger()["weights"] > 2 * 30e9 / GIB


@pytest.mark.parametrize("held_out", [False, True])
def test_the_record_of_measured_peaks_agrees(held_out):
    rows = [row for row in vram.beside_measured(records.load("vram/forge-steps")) if row["held_out"] == held_out]
    assert len(rows) >= (2 if held_out else 12)
    for row in rows:
        assert abs(row["error"]) < 0.02, row


def test_what_ran_under_the_cap_is_what_the_ledger_lets_fit():
    """The cases ran with 31.4 GiB less 8 for the engine and the context that was measured; the context is in `trainer`."""
    record = records.load("vram/forge-steps")
    said = {row["case"]: row["fits"] for row in vram.beside_measured(record)}
    for row in vram.beside_measured(record):
        case = {k: row[k] for k in ("method", "length", "budget", "checkpointing", "chunk", "rank", "reference")}
        found = Plan(SHAPES[row["model"]], **case).ledger()
        assert (found["trainer"] + found["margin"] <= 31.4 - 8) == said[row["case"]], row


def test_context_and_engine_are_those_measured():
    record = records.load("vram/forge-steps")
    figures, shape = record["figures"], SHAPES["Qwen3-0.6B"]
    assert vram.CONTEXT_GIB == pytest.approx(figures["context_gib"], abs=0.01)
    assert vram.ENGINE_OVER_GIB == pytest.approx(figures["engine_gib"] - 8, abs=0.01)
    cache = figures["kv_blocks"] * 16 * vram.kv_bytes_per_token(shape) / GIB
    assert vram.ENGINE_EXTRA_GIB == pytest.approx(8 - cache - 2 * vram.parameter_count(shape) / GIB, abs=0.01)


def test_the_command_prints_blocks_verdict_and_what_to_turn_first(capsys):
    from rrlforge import cli

    assert cli.main(["vram", "--model", "Qwen3-1.7B"]) == 0
    out = capsys.readouterr().out
    assert "❌" in out and "optimizer    12.82 GiB" in out and "turn first: also --optimizer adamw8bit" in out
    assert cli.main(["vram", "--card", "139.8", "--method", "lora", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == 2 and found["total"] == pytest.approx(Plan(SHAPES["Qwen3-0.6B"], "lora").ledger()["total"])


@pytest.mark.parametrize("words,message", [
    (["--length", "3"], "length is 3: outside [16, 262144]"), (["--card", "RTX 9090"], "no card 'RTX 9090'"),
    (["--model", "gpt"], "no model 'gpt'"), (["--lenght", "3"], "did you mean --length?")])
def test_a_mistake_on_the_command_line_is_one_line(capsys, words, message):
    from rrlforge import cli

    assert cli.main(["vram", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and message in err


def test_the_calculator_asks_for_what_the_formulas_read():
    spec = vram.calculator_spec([("RTX 5090", 31.36)])
    asked = {}
    for field in spec["fields"]:
        value = field["options"][0]["value"] if "options" in field else int(field["value"]) if isinstance(field["value"], bool) else field["value"]
        asked.update(value if isinstance(value, dict) else {field["name"]: value})
    assert asked == Plan(SHAPES["Qwen3-0.6B"]).flat()
    assert {block["key"] for block in spec["blocks"]} <= Plan(SHAPES["Qwen3-0.6B"]).ledger().keys()
    assert set(vram.TURNS) - {""} == set(vram.ENGLISH_TURNS) and set(spec["moments"]["texts"]) == set(vram.MOMENTS)
