"""What a chat template makes of a question, and what goes wrong around it: the facts of L0-6.

`describe` reads Qwen3's tokenizer into figures and series; they stand in book/records/templates/qwen3.json, because a
reader may have no hub. `check_prompt` is the guard to keep: it refuses a prompt that its own template did not make.
"""
from __future__ import annotations

import copy
import hashlib
import os
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.patches import Rectangle

from rrlforge import models, tasks
from rrlforge.errors import ForgeError
from rrlforge.plots import INK

HUB = "Qwen/Qwen3-0.6B"
FILES = ["tokenizer*", "vocab.json", "merges.txt", "chat_template*", "config.json"]
NAMED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEXTS = (("英文", "A train covers 240 miles in 3 hours. How far does it go in 5 hours?"),
         ("中文", "一列火车3小时走240公里，照这样5小时能走多远？"),
         ("中文加空格", "一列火车 3 小时走 240 公里，照这样 5 小时能走多远？"),
         ("数字", "1234567890"),
         ("答案框", r"\boxed{1234}"),
         ("生僻字", "龘"))
SPLITS = (("杯", "子"), ("1", "2", "\n", "\n"), (" ans", "wer"))  # ways to write a text that no encoder chooses


# ---------------------------------------------------------------- the guard

def edges(tokenizer, thinking: bool = False) -> tuple[str, str]:
    """(head, tail): what the template writes before and after the text of a single user message."""
    marker = "QUESTION"
    text = tasks.prompt_text(tokenizer, tasks.Problem(marker, ""), tasks.Task("", "", [], [], 1), thinking)
    head, _, tail = text.partition(marker)
    return head, tail


def check_prompt(tokenizer, ids: list[int], thinking: bool = False) -> str:
    """The question's text within the prompt `ids`; `ForgeError` where the template did not make them, once.

    Meant for prompts of one user message, as `tasks.prompt_ids` makes them. Finds: a plain string, no generation
    prompt, the last newline stripped, a think block too many or too few, a second bos, a template in a template.
    """
    head, tail = edges(tokenizer, thinking)
    text = tokenizer.decode(ids)
    borders = (("begins", text[:len(head)], head), ("ends", text[-len(tail):], tail))
    for verb, seen, wanted in borders:
        if seen != wanted:
            raise ForgeError(f"the prompt {verb} with {seen!r}, its template with {wanted!r}: "
                             "build it with prompt_ids")
    question = text[len(head):len(text) - len(tail)]
    for token in tokenizer.all_special_tokens:
        if token in question:
            raise ForgeError(f"the question holds the special token {token}: "
                             "it was templated twice, or is hostile")
    return question


def is_templated(tokenizer, ids: list[int], thinking: bool = False) -> bool:
    """Whether `check_prompt` lets `ids` pass."""
    try:
        check_prompt(tokenizer, ids, thinking)
    except ForgeError:
        return False
    return True


# ---------------------------------------------------------------- Qwen3's tokenizer

def load_qwen3():
    """Qwen3's tokenizer from the folder that RRLFORGE_QWEN3 names, else from the hub or ModelScope (no weights).

    Raises `ForgeError` in one line where neither has it.
    """
    source = os.environ.get("RRLFORGE_QWEN3", "")
    folder = Path(source).expanduser() if source else tasks.download(HUB, "model", FILES)
    if not (folder / "tokenizer.json").is_file():
        raise ForgeError(f"{folder} has no tokenizer.json: let RRLFORGE_QWEN3 name the folder of Qwen3's tokenizer")
    from transformers import AutoTokenizer

    with models.one_line(f"{folder} has no tokenizer that loads"), models.quiet():
        return AutoTokenizer.from_pretrained(folder, **models.LOCAL)


def pieces(tokenizer, ids: list[int]) -> list[str]:
    """The text of each id by itself; U+FFFD where a token is a part of a character."""
    return [tokenizer.decode([i]) for i in ids]


def describe(tokenizer) -> tuple[dict, dict]:
    """(figures, series) of a record: prompts with and without thinking, special tokens, counts, other ways to split.

    `dialogue` is a whole conversation as the template writes it; `split` holds ids that a model may sample and the ids
    that encoding the same text gives; `border` is a thinking prompt and a completion that begins with a newline.
    """
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    problem = tasks.load_arith().train[0]
    messages = [{"role": "user", "content": problem.question}, {"role": "assistant", "content": problem.solution}]
    task = tasks.Task("", "", [], [], 1)
    texts = {"no_think": tasks.prompt_text(tokenizer, problem, task),
             "think": tasks.prompt_text(tokenizer, problem, task, thinking=True),
             "dialogue": tokenizer.apply_chat_template(messages, tokenize=False)}
    series: dict[str, list] = {"end_ids": models.end_token_ids(None, tokenizer)}
    for name, text in texts.items():
        series[f"{name}_ids"] = encode(text)
        series[f"{name}_pieces"] = pieces(tokenizer, series[f"{name}_ids"])
    series["special"] = [{"token": token, "id": tokenizer.convert_tokens_to_ids(token),
                          "special": token in tokenizer.all_special_tokens} for token in NAMED]
    series["counts"] = [{"kind": kind, "text": text, "characters": len(text), "bytes": len(text.encode()),
                         "tokens": len(encode(text)), "pieces": pieces(tokenizer, encode(text))} for kind, text in TEXTS]
    series["split"] = [other_split(tokenizer, encode, parts) for parts in SPLITS]
    answer = "\n" + problem.solution.splitlines()[0]
    series["border"] = [{"prompt": encode(texts["think"]), "completion": encode(answer),
                         "together": encode(texts["think"] + answer)}]
    plain = tokenizer(problem.question)["input_ids"]
    figures = {"bos": tokenizer.bos_token or "", "eos": tokenizer.eos_token, "eos_id": tokenizer.eos_token_id,
               "pad": tokenizer.pad_token or "", "pad_id": -1 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
               "tokens": len(tokenizer), "padding_side": tokenizer.padding_side,
               "added_by_default": len(plain) - len(encode(problem.question)),
               "template_sha256": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()[:16],
               "question": problem.question, "solution": problem.solution, **texts}
    return figures, series


def other_split(tokenizer, encode: Callable[[str], list[int]], parts: tuple[str, ...]) -> dict:
    """Ids of `parts` one by one, which a model may sample, beside the ids of the whole text."""
    sampled = [i for part in parts for i in encode(part)]
    again = encode("".join(parts))
    return {"text": "".join(parts), "sampled": sampled, "sampled_pieces": pieces(tokenizer, sampled),
            "again": again, "again_pieces": pieces(tokenizer, again)}


def remeasured(kept: dict) -> dict:
    """`kept`, the record; with RRLFORGE_MEASURE=1 what the tokenizer at hand gives now, after a line on how they differ."""
    if os.environ.get("RRLFORGE_MEASURE", "") in ("", "0"):
        return kept
    figures, series = describe(load_qwen3())
    changed = [name for part, new in (("figures", figures), ("series", series))
               for name in new if kept[part].get(name) != new[name]]
    print("本机重测：" + (f"和记录不同的有 {', '.join(changed)}" if changed else "和记录一字不差"))
    return {**kept, "figures": figures, "series": series}


# ---------------------------------------------------------------- teaching an end

MaskOf = Callable[[list[int], int, int], list[int]]


def teach_ending(model, tokenizer, ending: str, mask_of: MaskOf, steps: int, lr: float = 1e-3):
    """A copy of `model` after supervised steps (12 rows each) on right arith solutions followed by `ending`.

    Completions are right-padded with the tokenizer's eos, as where no pad token exists; `mask_of(ids, length, pad)`,
    0 or 1 for each id of a padded completion, says which are learned.
    """
    model, pad, task = copy.deepcopy(model).train(), tokenizer.eos_token_id, tasks.Task("", "", [], [], 1)
    problems = tasks.word_problems(random.Random(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        batch = [p.as_problem() for p in islice(problems, 12)]
        prompts = [tasks.prompt_ids(tokenizer, p, task) for p in batch]
        answers = [tokenizer(p.solution + ending, add_special_tokens=False)["input_ids"] for p in batch]
        width = max(len(p) + len(a) for p, a in zip(prompts, answers))
        padded = [a + [pad] * (width - len(p) - len(a)) for p, a in zip(prompts, answers)]
        masks = [[0] * len(p) + mask_of(row, len(a), pad) for p, row, a in zip(prompts, padded, answers)]
        ids = torch.tensor([p + row for p, row in zip(prompts, padded)], device=model.device)
        mask = torch.tensor(masks, device=model.device, dtype=torch.bool)[:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1][mask]
        F.cross_entropy(logits, ids[:, 1:][mask]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model.eval()


# ---------------------------------------------------------------- log-probs

@torch.no_grad()
def completion_logprobs(model, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probs (len(completion),) of a completion by itself: one row, no padding, temperature 1."""
    ids = torch.tensor([prompt + completion], device=model.device)
    rows = model(input_ids=ids).logits[0, len(prompt) - 1:-1].float().log_softmax(-1)
    return rows.gather(-1, ids[0, len(prompt):, None])[:, 0]


# ---------------------------------------------------------------- figure

def token_boxes(ax, labels: list[str], colors: list[str], marks: list[str], line: float = 20.0) -> None:
    """Tokens as boxes from left to right, wrapped at `line` units (a box is 1 high); marks[i] stands under box i."""
    x, y, height = 0.0, 0.0, 1.0
    for label, color, mark in zip(labels, colors, marks):
        width = 0.55 + sum(0.68 if ord(c) > 0x2E7F else 0.42 for c in label)
        if x and x + width > line:
            x, y = 0.0, y - 1.9
        ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=0.6))
        ax.text(x + width / 2, y + height / 2, label.replace("$", r"\$"), ha="center", va="center", fontsize=12)
        ax.text(x + width / 2, y - 0.35, mark, ha="center", va="center", fontsize=10)
        x += width + 0.15
    ax.set(xlim=(-0.2, line + 0.2), ylim=(y - 0.8, height + 0.2))
    ax.axis("off")


GREY, WHITE = "#D9DDE3", "#FFFFFF"
QUESTION, THINK, COMPLETION = "#CFE6F5", "#F6D48B", "#BFE5D6"


def training_row(ax, series: dict, pads: int = 2) -> None:
    """Draw the dialogue of a record as a row to train on, right-padded: who wrote each token, and the mask under it.

    Template grey, question blue, empty think block yellow, completion green (its newline after the end is left out).
    """
    prompt, before_think = len(series["no_think_ids"]), len(series["think_ids"])
    row = series["dialogue_pieces"][:-1]
    end_of_question = row.index("<|im_end|>")
    colors = [COMPLETION if t >= prompt else THINK if t >= before_think else
              QUESTION if 3 <= t < end_of_question else GREY for t in range(len(row))]
    labels = [piece.replace("\n", "¶") for piece in row] + ["<|endoftext|>"] * pads
    marks = ["0"] * prompt + ["1"] * (len(row) - prompt) + ["0"] * pads
    token_boxes(ax, labels, colors + [WHITE] * pads, marks)
