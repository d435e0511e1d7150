"""Load a policy: a hub id, a folder, or `tiny`, which is made here in about a minute and kept in a cache.

tiny is Qwen3's architecture at 0.4 M parameters with a character tokenizer. Its warm-up has two phases, both
supervised, on problems of the training side of `tasks.word_problems`:

1. It learns to reckon: right solutions, one step a line.
2. It gets bad habits: it often forgets to carry (27+15=32), and sometimes answers without any steps. This is
   where GRPO starts: the right way is still in the model, one among others.
"""
from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig,
                          PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM)
from transformers.utils import logging

from rrlforge import tasks
from rrlforge.errors import ForgeError

TINY = re.compile(r"tiny(?::(\d{1,9}))?")
SMALL = 5_000_000  # parameters
EMBEDDING = "model.embed_tokens.weight"  # its name in Qwen, Llama and most others
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # code from a folder: not run, not asked about


# ---------------------------------------------------------------- loading

def load_model(name: str, device: str | None = None, dtype: torch.dtype | None = None):
    """(model, tokenizer) of "tiny", a folder, or a hub id; float32 on `default_device()` unless told.

    Weights come from safetensors only, code from transformers only. Raises `ForgeError` in one line. A model of
    under `SMALL` parameters on a CPU sets torch to one thread for this process; any other leaves it alone.
    """
    folder = model_folder(name)
    with one_line(f"{folder} does not load as a model"), quiet():
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype or torch.float32, attn_implementation="sdpa", use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True, **LOCAL)
    check_loaded(folder, found)
    model = model.to(device or default_device()).eval()
    if model.device.type == "cpu" and count_parameters(model) < SMALL:
        torch.set_num_threads(1)  # two threads spend their time on each other: up to five times slower beside other work
    return model, load_tokenizer(str(folder))


def load_tokenizer(name: str):
    """The tokenizer of "tiny", a folder, or a hub id. Where it has no pad token, its end token stands in."""
    folder = model_folder(name)
    with one_line(f"{folder} has no tokenizer that loads"):
        settings = folder / "tokenizer_config.json"
        kind = json.loads(settings.read_text("utf8")).get("tokenizer_class") if settings.is_file() else None
    if not kind:  # transformers would guess one by the model's name, and turn a prompt into other ids without a word
        raise ForgeError(f"{settings} is missing or names no tokenizer_class: fetch the folder again")
    with one_line(f"{folder} has no tokenizer that loads"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(name: str):
    """The model's config; its `eos_token_id` also lists the end tokens of generation_config.json."""
    folder = model_folder(name)
    with one_line(f"{folder}/config.json does not load"):
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        if (folder / "generation_config.json").exists():
            generation = GenerationConfig.from_pretrained(folder)
            config.eos_token_id = sorted({*as_list(config.eos_token_id), *as_list(generation.eos_token_id)})
    return config


def model_folder(name: str) -> Path:
    """The local folder of "tiny" (made if need be), of a path, or of a hub id (fetched if need be).

    "tiny:2" is tiny warmed up with seed 2, another start of the same recipe.
    """
    if match := TINY.fullmatch(name):
        return tiny_folder(int(match[1] or 0))
    folder = Path(name).expanduser()
    if not folder.exists():
        if not tasks.HUB_ID.fullmatch(name):
            raise ForgeError(f"no folder {name!r}: name tiny, a folder with config.json, "
                             "or a hub id such as Qwen/Qwen3-0.6B")
        folder = tasks.download(name, "model", FILES)
    if not (folder / "config.json").is_file():
        inside = (folder / "model" / "config.json").is_file()
        hint = f"did you mean {folder / 'model'}?" if inside else "name a model's folder"
        raise ForgeError(f"{folder} has no config.json: {hint}")
    if not any(folder.glob("*.safetensors")):
        raise ForgeError(f"{folder} has no .safetensors file: other weight formats are not loaded")
    check_vocab_size(folder)
    check_end_tokens(folder)
    return folder


def check_end_tokens(folder: Path) -> None:
    """`ForgeError` where config.json or generation_config.json cannot be read, or names an end token that is no id."""
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.exists():
            with one_line(f"{path} does not load"):
                ids = json.loads(path.read_text("utf8")).get("eos_token_id")
            if ids is not None and not all(type(i) is int for i in (ids if isinstance(ids, list) else [ids])):
                raise ForgeError(f"{path} has eos_token_id {ids!r}: write a token id, or a list of ids")


def check_vocab_size(folder: Path) -> None:
    """`ForgeError` where config.json's vocab_size is no count of tokens, or not that of the weights."""
    with one_line(f"{folder}/config.json does not load"):
        config = json.loads((folder / "config.json").read_text("utf8"))
        size = config.get("vocab_size", 1)  # a config without one leaves it to its model's class
    if type(size) is not int or size < 1:
        raise ForgeError(f"{folder}/config.json has vocab_size {size!r}: write the number of tokens, 1 or more")
    rows = embedding_rows(folder)
    if "vocab_size" in config and rows not in (None, size):
        raise ForgeError(f"{folder}/config.json has vocab_size {size}, its weights have {rows} tokens: "
                         "repair the folder or fetch it again")


def embedding_rows(folder: Path) -> int | None:
    """How many tokens the weights of `folder` have an embedding for; None where it goes by another name."""
    with one_line(f"{folder} does not load as a model"):
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as weights:
                if EMBEDDING in weights.keys():
                    return weights.get_slice(EMBEDDING).get_shape()[0]
    return None


def check_loaded(folder: Path, found: dict) -> None:
    """`ForgeError` for the first weight that config.json asks for and the files lack or have in another shape."""
    for name, in_file, in_config in sorted(found["mismatched_keys"]):
        raise ForgeError(f"{folder}: {name} is {tuple(in_file)} in the weights, {tuple(in_config)} by config.json: "
                         "repair the folder or fetch it again")
    for name in sorted(found["missing_keys"]):
        raise ForgeError(f"{folder}: the weights lack {name}: repair the folder or fetch it again")


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn whatever transformers raises about a folder into one line that begins with `what`."""
    try:
        yield
    except ForgeError:
        raise
    except Exception as error:  # transformers, safetensors and tokenizers have no error in common
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ForgeError(f"{what} ({type(error).__name__}: {reason}): "
                         "repair the folder or fetch it again") from None


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and reports from transformers: what a reader has to know is in our one line."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def end_token_ids(source, tokenizer) -> list[int]:
    """Every id that ends a completion, sorted. `source` is a model, or a config from `load_config`.

    A model whose generation config stops on one of two end tokens never stops on the other, so all are taken:
    those of the generation config and the config, the tokenizer's eos, and <|im_end|> and <|endoftext|> where
    they exist.
    """
    found: set[int] = set()
    for config in (source, getattr(source, "config", None), getattr(source, "generation_config", None)):
        found.update(as_list(getattr(config, "eos_token_id", None)))
    vocab = tokenizer.get_vocab()
    found.update(vocab[token] for token in ("<|im_end|>", "<|endoftext|>") if token in vocab)
    return sorted({*found, *as_list(tokenizer.eos_token_id)})


def as_list(ids: int | list[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def default_model() -> str:
    """What a lesson trains: RRLFORGE_MODEL where it is set, else Qwen3-0.6B on a GPU and tiny without one."""
    return os.environ.get("RRLFORGE_MODEL") or ("Qwen/Qwen3-0.6B" if torch.cuda.is_available() else "tiny")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def count_parameters(model) -> int:
    """Trainable and frozen parameters; tied weights count once."""
    return sum(p.numel() for p in model.parameters())


# ---------------------------------------------------------------- tiny: what it is

PAD, IM_START, IM_END, UNKNOWN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "\ufffd"
TEMPLATE = ("{% for message in messages %}"
            "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@dataclass(frozen=True)
class Recipe:
    """All that the weights of tiny depend on, besides the machine and the problems of tasks.py."""

    seed: int = 0
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 384
    init: float = 0.08          # 0.02 learns later
    max_length: int = 256
    batch: int = 12             # its activations fit a core's cache: 16 rows take half as long again
    steps: int = 1250           # phase 1, AdamW, cosine to a tenth
    lr: float = 3e-3
    lr_warmup: int = 20
    habit_steps: int = 100      # phase 2, cosine to a tenth
    habit_lr: float = 5e-4
    terse: float = 0.3          # share of answers without steps
    forget: float = 0.7         # chance that a step's carry is forgotten

    def key(self) -> str:
        """A hash of the recipe, the vocabulary and the version of the problems."""
        parts = [dataclasses.asdict(self), vocabulary(), tasks.ARITH_VERSION, tasks.SALT, TEMPLATE]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def vocabulary() -> list[str]:
    """The tokens of tiny in the order of their ids: ChatML, unknown, newline, ASCII, the task's Chinese."""
    ascii_characters = [chr(code) for code in range(32, 127)]
    return [PAD, IM_START, IM_END, UNKNOWN, "\n", *ascii_characters, *tasks.arith_characters()]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, with ChatML's special tokens and template."""
    vocab = {token: i for i, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=IM_END, padding_side="left",
        additional_special_tokens=[IM_START], chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def untrained(recipe: Recipe) -> Qwen3ForCausalLM:
    """The model of `recipe` with random weights; the global random state stays as it was."""
    vocab = vocabulary()
    pad, end = vocab.index(PAD), vocab.index(IM_END)
    config = Qwen3Config(
        vocab_size=len(vocab), hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
        head_dim=recipe.head_dim,
        num_attention_heads=recipe.heads, num_key_value_heads=recipe.kv_heads, intermediate_size=recipe.ffn,
        max_position_embeddings=recipe.max_length, tie_word_embeddings=True, initializer_range=recipe.init,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=pad, pad_token_id=pad, eos_token_id=end)
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad, bos_token_id=pad)
    return model


# ---------------------------------------------------------------- tiny: its warm-up

def warm_up(model, tokenizer, recipe: Recipe, bar: tqdm) -> None:
    """Both phases, in place, on the CPU with one thread: reckoning first, bad habits second."""
    model.train()
    rng = random.Random(f"warm-up-{recipe.seed}")
    problems = tasks.word_problems(rng)

    with one_thread():
        right = ((p.question, tasks.solution_text(p.steps)) for p in problems)
        fit(model, tokenizer, right, recipe.batch, cosine(recipe.lr, recipe.steps, recipe.lr_warmup), bar)
        habits = ((p.question, habitual(rng, p.steps, recipe)) for p in problems)
        rates = cosine(recipe.habit_lr, recipe.habit_steps, recipe.lr_warmup)
        fit(model, tokenizer, habits, recipe.batch, rates, bar)
    model.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread, then as many as before. At this size a second one saves a tenth of the time on two idle
    cores, and costs far more where other work runs or the kernel keeps both threads on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cosine(peak: float, steps: int, warmup: int) -> list[float]:
    """The learning rate of each step: a linear start, then a cosine from `peak` to a tenth of it."""
    return [peak * min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            for step in range(steps)]


def habitual(rng: random.Random, steps: tuple[tasks.Step, ...], recipe: Recipe) -> str:
    """A solution as phase 2 teaches it: `terse` of them without steps, carries lost with chance `forget`.

    After a wrong value the next step goes on from that value, as a pupil's would.
    """
    if rng.random() < recipe.terse:
        return f"\\boxed{{{steps[-1].value}}}"
    written, value = [], steps[0].left
    for step in steps:
        reckon = without_carry if rng.random() < recipe.forget else tasks.compute
        written.append(tasks.Step(value, step.op, step.right, max(0, reckon(value, step.op, step.right))))
        value = written[-1].value
    return tasks.solution_text(tuple(written))


def without_carry(left: int, op: str, right: int) -> int:
    """`left op right` digit by digit, nothing carried or borrowed: 27+15=32, 42-15=37, 18*3=34."""
    (tens, units), (right_tens, right_units) = divmod(left, 10), divmod(right, 10)
    if op == "*":
        return 10 * tens * right + units * right % 10
    return 10 * tasks.compute(tens, op, right_tens) + tasks.compute(units, op, right_units) % 10


def fit(model, tokenizer, pairs: Iterator[tuple[str, str]], batch: int, rates: list[float], bar) -> None:
    """Supervised steps on (question, answer) pairs, one a learning rate; loss on the answer and its end."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for rate in rates:
        ids, mask = teach(tokenizer, [next(pairs) for _ in range(batch)])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][mask]
        loss = F.cross_entropy(model.lm_head(hidden), ids[:, 1:][mask])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        bar.update()


def teach(tokenizer, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (question, answer) -> right-padded ids (B, T), and mask (B, T-1) before each answer token."""
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                             add_generation_prompt=True) for question, _ in pairs]
    starts = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    rows = tokenizer([prompt + answer + IM_END for prompt, (_, answer) in zip(prompts, pairs)])["input_ids"]
    width = max(map(len, rows))
    place = torch.arange(width - 1)[None]
    start, stop = torch.tensor(starts)[:, None], torch.tensor([len(row) for row in rows])[:, None]
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    return ids, (place >= start - 1) & (place < stop - 1)


# ---------------------------------------------------------------- tiny: its cache

def tiny_folder(seed: int = 0, recipe: Recipe | None = None) -> Path:
    """The folder of tiny: config, weights, tokenizer, template. Made if it is not in the cache, or not whole.

    The cache is the user's cache folder, or the one that RRLFORGE_CACHE names; one folder a recipe and seed.
    """
    recipe = recipe or Recipe(seed=seed)
    folder = cache_root() / f"tiny-{recipe.key()}-seed{recipe.seed}"
    if not is_whole(folder):
        build_tiny(recipe, folder)
    return folder


def cache_root() -> Path:
    return Path(os.environ.get("RRLFORGE_CACHE") or platformdirs.user_cache_dir("rrlforge")).expanduser()


def build_tiny(recipe: Recipe, folder: Path) -> None:
    """Train tiny beside `folder` and rename it. Of two processes the second waits, then takes the first one's."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            remove_leavings(folder)
            if not is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent,
                                                 ignore_cleanup_errors=True) as beside:
                    make_tiny(recipe, Path(beside))
                    os.replace(beside, folder)
    except OSError as error:
        if not is_whole(folder):
            raise ForgeError(f"the cache {folder.parent} cannot be written ({error.strerror or error}): "
                             "set RRLFORGE_CACHE to a folder that can") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file beside it; wait while another process holds it. It falls with its process."""
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if sys.stderr.isatty():
                print("another process warms up tiny: waiting for it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_leavings(folder: Path) -> None:
    """Remove what killed builds left beside `folder`: its own (we hold the lock), others' when they are a day old."""
    for path in folder.parent.glob(".tiny-*/"):
        if path.name.startswith(f".{folder.name}-") or time.time() - path.stat().st_mtime > DAY:
            shutil.rmtree(path, ignore_errors=True)


def make_tiny(recipe: Recipe, folder: Path) -> None:
    """Train tiny and write it into the empty `folder`, the checksums of all files last."""
    model, tokenizer = untrained(recipe), character_tokenizer()
    with progress(recipe.steps + recipe.habit_steps) as bar:
        warm_up(model, tokenizer, recipe, bar)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    seal = {"recipe": dataclasses.asdict(recipe), "sha256": digests(folder)}
    (folder / SEAL).write_text(json.dumps(seal, indent=1))


def progress(steps: int) -> tqdm:
    """A live bar on a terminal, silent elsewhere (notebooks, logs, TQDM_DISABLE=1)."""
    silent = not sys.stderr.isatty() or os.environ.get("TQDM_DISABLE") == "1"
    return tqdm(total=steps, desc="warming up tiny (only once)", unit="step", disable=silent, leave=False)


SEAL = "built.json"
DAY = 24 * 60 * 60  # seconds


def digests(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.iterdir() if path.name != SEAL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def is_whole(folder: Path) -> bool:
    """Whether every file that was written when `folder` was built is there, unchanged."""
    try:
        sealed = json.loads((folder / SEAL).read_text())["sha256"]
        return sealed.items() <= digests(folder).items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
