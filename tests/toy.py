"""Small random models for the tests: real architectures, no training, no download."""
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def toy_model(seed: int = 0, vocab: int = 37, dtype=torch.float64) -> Qwen3ForCausalLM:
    """A random two-layer Qwen3 with `vocab` tokens; float64 so that equalities can be tight."""
    torch.manual_seed(seed)
    config = Qwen3Config(vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=8, max_position_embeddings=2048, tie_word_embeddings=True,
                         initializer_range=0.3, bos_token_id=0, eos_token_id=2, pad_token_id=0)
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config).to(dtype).eval()


def toy_ids(rng, count: int, vocab: int = 37) -> list[int]:
    return [rng.randrange(3, vocab) for _ in range(count)]
