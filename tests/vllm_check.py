"""Run by test_engines.py: the vLLM engine samples, syncs, resets its prefix cache, and agrees with the trainer."""
import os
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rrlforge.engines import HFEngine, Sampling, VLLMEngine, check_sync
from rrlforge.errors import ForgeError


def main(folder: str) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
                         initializer_range=0.1, eos_token_id=2, pad_token_id=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Qwen3ForCausalLM(config).to(device).eval()
    model.save_pretrained(folder)
    bound = 0.05 if device == "cuda" else 1e-3
    ends, prompts = [2, 9], [[5, 6, 7] * 20, [5, 6, 7] * 20 + [8, 11]]  # a shared prefix longer than a cache block
    engine = VLLMEngine(folder, ends, 128, memory_gib=4.0, eager=True)
    engine.sync(model)
    check_sync(engine, model, prompts, bound)

    done = engine.generate(prompts, 4, Sampling(32, temperature=0.7, seed=3))
    assert len(done.token_ids) == 8 and all(len(i) == len(p) for i, p in zip(done.token_ids, done.logprobs))
    assert {i[-1] for i, r in zip(done.token_ids, done.finish_reason) if r == "stop"} <= set(ends)
    if device == "cpu":  # on CUDA the order in which rows meet the sampler is not fixed
        assert done.token_ids == engine.generate(prompts, 4, Sampling(32, temperature=0.7, seed=3)).token_ids
    some = engine.generate(prompts, 4, Sampling(8, seed=3, logprobs="first"))  # log-probs of one completion a prompt
    assert [p is not None for p in some.logprobs] == [True, False, False, False] * 2
    assert len(some.logprobs[4]) == len(some.token_ids[4]) and len(some.token_ids) == 8
    none = engine.generate(prompts, 2, Sampling(8, seed=3, logprobs="none"))
    assert none.logprobs == [None] * 4 and len(none.token_ids) == 4
    for i, (ids, logprobs) in enumerate(zip(done.token_ids, done.logprobs)):  # tempered log-probs
        prompt = prompts[i // 4]
        logits = model(input_ids=torch.tensor([prompt + ids], device=device)).logits[0, len(prompt) - 1:-1].float() / 0.7
        want = logits.log_softmax(-1).gather(-1, torch.tensor(ids, device=device)[:, None])[:, 0].cpu()
        assert (want - torch.tensor(logprobs)).abs().mean() < bound

    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    try:
        check_sync(engine, model, prompts, bound)
    except ForgeError:
        pass
    else:
        raise AssertionError("stale weights were not noticed")
    engine.sync(model)
    check_sync(engine, model, prompts, bound)
    if device == "cpu":  # the same weights, the same greedy answers
        greedy = Sampling(16, temperature=0)
        assert engine.generate(prompts, 1, greedy).token_ids == HFEngine(model, ends, 0).generate(prompts, 1, greedy).token_ids
    print("vllm check passed", flush=True)
    os._exit(0)  # a vLLM process may hang at exit after its work is done


if __name__ == "__main__":
    main(sys.argv[1])
