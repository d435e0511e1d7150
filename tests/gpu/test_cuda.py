"""What only a CUDA device can show: `make gpu-test`. Each vLLM run is a bounded process of its own."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rrlforge import forge
from rrlforge.config import GRPOConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
TESTS = Path(__file__).parent.parent


def process(*command: str, limit: int = 300) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=limit, check=False,
                          env={**os.environ, "TQDM_DISABLE": "1"})


def test_vllm_on_cuda_samples_syncs_and_agrees_with_the_trainer(tmp_path):
    done = process(str(TESTS / "vllm_check.py"), str(tmp_path))
    assert "vllm check passed" in done.stdout, done.stderr[-2000:]


def test_a_run_with_vllm_learns_within_its_cap_and_leaves_what_a_run_leaves(tmp_path):
    done = process("-m", "rrlforge.cli", "train", "--model", "tiny", "--engine", "vllm", "--engine-gib", "4", "--steps", "4",
                   "--eval-problems", "32", "--memory-cap-gib", "31.4", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in lines] == [0, 1, 2, 3]
    assert all(m["mismatch"] is None or m["mismatch"] < 0.05 for m in lines)
    assert all(0 < m["memory_gib"] <= 31.4 and m["sync_s"] < m["step_s"] for m in lines)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_killed_run_goes_on_with_the_fused_optimiser(tmp_path):
    common = ["-m", "rrlforge.cli", "train", "--model", "tiny", "--engine", "hf", "--steps", "6", "--checkpoint-every", "2",
              "--eval-problems", "0", "--out", str(tmp_path / "run")]
    code = f"""import sys; from rrlforge import cli, runs
log = runs.Run.log_step
def stop(self, step, *rest):
    log(self, step, *rest)
    if step == 4:
        import os; os._exit(9)
runs.Run.log_step = stop
sys.exit(cli.main({common[2:]!r}))"""
    assert process("-c", code).returncode == 9
    done = process(*common, "--resume")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in lines] == list(range(6))


def test_a_cap_below_what_the_engine_takes_is_refused_in_one_line(tmp_path):
    done = process("-m", "rrlforge.cli", "train", "--model", "tiny", "--engine", "vllm", "--engine-gib", "4", "--steps", "1",
                   "--eval-problems", "0", "--memory-cap-gib", "1", "--out", str(tmp_path / "run"))
    ours = [line for line in done.stderr.splitlines() if line.startswith("rrlforge:")]
    assert done.returncode == 2 and len(ours) == 1 and "the cap is 1" in ours[0]


@pytest.fixture(scope="module")
def wide():
    """A shallow model with Qwen3's vocabulary: the logits are all of its memory."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=151936, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True)
    return Qwen3ForCausalLM(config).cuda()


def rows(count: int, length: int) -> list[forge.Row]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(5, 1000, (n,), generator=generator).tolist()  # noqa: E731
    return [forge.Row(draw(16), draw(length), [-7.0] * length, False, advantage=1.0 if i % 2 else -1.0) for i in range(count)]


def test_logits_are_never_whole_in_memory(wide):
    """16 x 512 tokens x 151,936 in float32 are 4.6 GiB a copy; chunks of 512 tokens hold 0.3 GiB."""
    cfg = GRPOConfig(token_budget=16 * 528, logit_chunk=512)
    batch = rows(16, 512)
    forge.set_weights(batch, cfg, 512)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forge.accumulate(wide, None, batch, cfg, {"ratio": [], "clipped": [], "mismatch": []})
    wide.zero_grad(set_to_none=True)
    assert (torch.cuda.max_memory_allocated() - before) / 2**30 < 2.5


def test_bf16_compute_stays_near_float32(wide):
    batch = rows(4, 64)
    with torch.no_grad():
        low = forge.forward(wide, batch, GRPOConfig()).cpu()
        exact = forge.forward(wide.cpu(), batch, GRPOConfig())
    wide.cuda()
    assert (low - exact).abs().mean() < 0.02
