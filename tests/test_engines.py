"""The hand-written engine against transformers' generate and the trainer; vLLM in a process of its own."""
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from toy import toy_ids, toy_model

from rrlforge.engines import Completions, HFEngine, Sampling, VLLMEngine, check_sync
from rrlforge.errors import ForgeError

END = [2, 1]


@pytest.fixture(scope="module")
def model():
    return toy_model(dtype=torch.float64)


def prompts(count, seed=0):
    rng = random.Random(seed)
    return [toy_ids(rng, rng.randint(2, 17)) for _ in range(count)]


def test_greedy_completions_equal_transformers_generate(model):
    done = HFEngine(model, END, 0).generate(prompts(6), 1, Sampling(24, temperature=0))
    for prompt, ids in zip(prompts(6), done.token_ids):
        want = model.generate(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                              do_sample=False, max_new_tokens=24, eos_token_id=END, pad_token_id=0)[0, len(prompt):]
        assert ids == want.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_same_sequence_alone_at_the_sampling_temperature(model, temperature):
    done = HFEngine(model, END, 0).generate(prompts(5), 3, Sampling(20, temperature, seed=4))
    for i, (ids, logprobs) in enumerate(zip(done.token_ids, done.logprobs)):
        prompt = prompts(5)[i // 3]
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1:-1] / temperature
        want = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs, dtype=torch.float64), want, rtol=0, atol=1e-5)


def test_dropping_finished_rows_changes_no_completion(model):
    def run(below):
        engine = HFEngine(model, END, 0)
        engine.DROP_BELOW = below
        return engine.generate(prompts(9), 1, Sampling(40, temperature=0))

    never, always = run(0.0), run(1.1)
    assert never.token_ids == always.token_ids
    assert {"stop"} <= set(never.finish_reason)  # otherwise nothing was dropped


def test_every_end_token_stops_and_is_kept_in_the_ids(model):
    done = HFEngine(model, END, 0).generate(prompts(40), 4, Sampling(30, seed=1))
    last = {ids[-1] for ids, reason in zip(done.token_ids, done.finish_reason) if reason == "stop"}
    assert last == set(END)
    for ids, reason in zip(done.token_ids, done.finish_reason):
        assert not set(ids[:-1]) & set(END)
        assert (reason == "stop") == (ids[-1] in END)
        assert len(ids) == 30 or reason == "stop"


def test_rows_are_prompt_major_and_passes_do_not_mix_them(model):
    whole = HFEngine(model, END, 0).generate(prompts(7), 1, Sampling(12, temperature=0))
    split = HFEngine(model, END, 0, max_rows=3).generate(prompts(7), 1, Sampling(12, temperature=0))
    assert whole.token_ids == split.token_ids and len(whole.token_ids) == 7


def test_one_seed_gives_one_result_and_another_seed_another(model):
    engine = HFEngine(model, END, 0)
    a, b, c = (engine.generate(prompts(4), 4, Sampling(16, seed=s)).token_ids for s in (5, 5, 6))
    assert a == b != c


def test_sampling_follows_the_softmax(model):
    """4,096 first tokens against the exact probabilities: total variation within 4 sigma of its noise."""
    prompt = prompts(1)[0]
    done = HFEngine(model, END, 0, max_rows=4096).generate([prompt], 4096, Sampling(1, temperature=0.8, seed=9))
    exact = (model(input_ids=torch.tensor([prompt])).logits[0, -1] / 0.8).softmax(-1)
    counts = torch.bincount(torch.tensor(done.token_ids)[:, 0], minlength=len(exact)) / 4096
    assert ((counts - exact).abs() <= 4 * (exact * (1 - exact) / 4096).sqrt() + 1e-3).all()


def test_top_p_never_draws_outside_the_nucleus(model):
    prompt = prompts(1)[0]
    done = HFEngine(model, END, 0, max_rows=2048).generate([prompt], 2048, Sampling(1, top_p=0.5, seed=2))
    exact, order = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1).sort(descending=True)
    nucleus = set(order[: int((exact.cumsum(0) < 0.5).sum()) + 1].tolist())
    assert {ids[0] for ids in done.token_ids} <= nucleus


@pytest.mark.parametrize("bad", [dict(max_new_tokens=0), dict(max_new_tokens=4, temperature=-0.1), dict(max_new_tokens=4, top_p=0.0)])
def test_impossible_sampling_is_refused(bad):
    with pytest.raises(ForgeError, match="max_new_tokens must be at least 1"):
        Sampling(**bad)


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ForgeError, match="none empty"):
        HFEngine(model, END, 0).generate([[3], []], 1, Sampling(4))


def test_check_sync_passes_on_equal_weights_and_stops_on_others(model):
    assert check_sync(HFEngine(model, END, 0), model, prompts(3), bound=1e-3) < 1e-5
    with pytest.raises(ForgeError, match="the engine has other weights"):
        check_sync(HFEngine(toy_model(7), END, 0), model, prompts(3), bound=1e-3)


def test_sleep_mode_refuses_expandable_segments_before_anything_is_allocated(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(ForgeError, match="exclude each other"):
        VLLMEngine("nowhere", END, 64, sleep=True)


@pytest.mark.slow
def test_the_engine_is_at_least_half_again_as_fast_as_generate_at_160_rows():
    from rrlforge import models, tasks
    from rrlforge.engines import end_token_ids

    tiny, tokenizer = models.load_model("tiny")
    task = tasks.load_task("arith")
    ids = [tasks.prompt_ids(tokenizer, p, task) for p in task.test[:20]]
    ends = end_token_ids(tiny, tokenizer)
    engine = HFEngine(tiny, ends, tokenizer.pad_token_id)
    batch = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")

    def ours(seed):
        return engine.generate(ids, 8, Sampling(48, seed=seed)).tokens

    def theirs(seed):
        torch.manual_seed(seed)
        out = tiny.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=8,
                            max_new_tokens=48, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
        return int((out[:, batch["input_ids"].shape[1]:] != tokenizer.pad_token_id).sum())

    rates = {ours: 0.0, theirs: 0.0}
    ours(0), theirs(0)
    for seed in range(1, 5):  # side by side, the best of four each
        for run in rates:
            start = time.perf_counter()
            rates[run] = max(rates[run], run(seed) / (time.perf_counter() - start))
    assert rates[ours] > 1.5 * rates[theirs], rates


@pytest.mark.slow
def test_vllm_syncs_weights_and_agrees_with_the_trainer(tmp_path):
    """In a process of its own: vLLM takes over torch's distributed state and threads."""
    script = Path(__file__).with_name("vllm_check.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=400,
                          env={**os.environ, "PYTHONPATH": str(script.parent)})
    assert "vllm check passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_tokens_counts_all_rows():
    assert Completions([[1, 2], [3]], [[0.0, 0.0], [0.0]], ["stop", "length"]).tokens == 3


def test_weights_that_are_not_finite_are_one_line():
    model = toy_model(dtype=torch.float32)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ForgeError, match="logits are not finite"):
        HFEngine(model, [2], 0).generate([[5, 6]], 2, Sampling(4))
    with pytest.raises(ForgeError, match="temperature 0 or in"):
        Sampling(4, temperature=1e-39)
