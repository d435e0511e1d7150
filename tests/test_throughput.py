"""Tokens a second: the arithmetic of the sweep on a fake clock, the roofline against known figures."""
import pytest

from rrlforge import throughput
from rrlforge.errors import ForgeError
from rrlforge.vram import SHAPES

SMALL = SHAPES["Qwen3-0.6B"]


class FakeEngine:
    """Takes 1 ms a prompt token and 10 ms a decode step, whatever the number of requests."""

    def __init__(self):
        self.now, self.prompts = 0.0, []

    def generate(self, prompts, limit):
        self.prompts += [tuple(p) for p in prompts]
        self.now += 0.001 * sum(map(len, prompts)) + 0.01 * (limit - 1)
        return len(prompts) * limit


def test_a_sweep_takes_prefill_and_decode_apart():
    engine = FakeEngine()
    points = list(throughput.sweep(engine.generate, 1000, (1, 8), 20, 50, repeats=2, clock=lambda: engine.now))
    assert [p.concurrency for p in points] == [1, 8] and all(len(p.decode) == 2 for p in points)
    for p in points:
        assert p.prefill == pytest.approx([1000, 1000])
        assert p.decode == pytest.approx([p.concurrency * 100] * 2)
        assert p.total == pytest.approx([p.concurrency * 50 / (0.02 * p.concurrency + 0.49)] * 2)
    assert len(set(engine.prompts)) == len(engine.prompts)  # no prefix cache helps


def test_a_completion_that_stops_early_is_an_error():
    with pytest.raises(ForgeError, match="an end token came"):
        list(throughput.sweep(lambda prompts, limit: 1, 100, (4,), 8, 8))


@pytest.mark.parametrize("concurrency,prompt,new,repeats,message", [
    ((0,), 8, 8, 1, "1, 4096"), ((), 8, 8, 1, "at least one"), ((1,), 0, 8, 1, "prompt tokens 0"), ((1,), 8, 1, 1, "new tokens 1: outside"),
    ((1,), 8, 8, 0, "repeats 0")])
def test_a_sweep_without_sense_is_one_line(concurrency, prompt, new, repeats, message):
    with pytest.raises(ForgeError, match=message):
        throughput.check_sweep(concurrency, prompt, new, repeats)


def test_the_roofline_of_one_request_is_bandwidth_over_weights():
    ceiling = throughput.roofline(SMALL, 1, 0, 1792, 209.5)
    assert ceiling.weight_bytes == 2 * 596_049_920 and ceiling.bound == "bandwidth"
    assert ceiling.tokens_s == pytest.approx(1503, rel=1e-3)  # shared facts: 1792e9 / 1.192e9


def test_the_kv_cache_bends_the_roofline_and_untied_embeddings_are_not_read():
    few, many = (throughput.roofline(SMALL, c, 256, 4800, 989.5).tokens_s for c in (1, 512))
    assert many / few < 512 / 8
    assert many == pytest.approx(512 / ((2 * 596_049_920 + 512 * 256 * 114_688) / 4.8e12), rel=1e-9)
    big = SHAPES["Qwen3-8B"]
    assert throughput.weight_bytes_read(big) == 2 * (8_190_735_360 - 151_936 * 4096)


def test_without_context_the_roofline_flattens_at_the_compute_bound():
    ceiling = throughput.roofline(SMALL, 4096, 0, 1792, 209.5)
    assert ceiling.bound == "compute" and ceiling.tokens_s == pytest.approx(209.5e12 / (2 * 596_049_920), rel=1e-9)


def test_median_and_spread():
    assert throughput.median_and_spread([1.0, 2.0, 4.0]) == (2.0, 1.5)


@pytest.mark.parametrize("words,message", [
    (["--concurrency", "1,x"], "whole numbers with commas"), (["--concurrency", "0"], "in [1, 4096]"), (["--new-tokens", "1"], "new tokens 1: outside"),
    (["--card", "RTX 9090"], "no card 'RTX 9090'")])
def test_a_mistake_on_the_command_line_is_one_line(capsys, words, message):
    from rrlforge import cli

    assert cli.main(["bench", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and message in err


def test_the_view_without_end_token_keeps_everything_else(tmp_path):
    import json

    (tmp_path / "model").mkdir()
    (tmp_path / "view").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"eos_token_id": [1, 2], "hidden_size": 8}')
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    view = throughput.without_end(tmp_path / "model", tmp_path / "view")
    assert json.loads((view / "config.json").read_text()) == {"eos_token_id": None, "hidden_size": 8}
    assert (view / "model.safetensors").read_bytes() == b"weights"


def test_what_is_held_back_comes_out_with_an_error(capfd):
    import os

    with throughput.quiet():
        os.write(2, b"native noise\n")
        print("noise")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        with throughput.quiet():
            os.write(2, b"the reason\n")
            1 / 0
    assert "the reason" in capfd.readouterr().err
