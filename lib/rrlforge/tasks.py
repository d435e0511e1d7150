r"""Problems with gold answers, and the prompts made of them: GSM8K, and generated Chinese arithmetic.

gsm8k   Cobbe et al. 2021 (arXiv 2110.14168): 7,473 problems to train on and 1,319 to test with. From the hub,
        from ModelScope (RRLFORGE_MODELSCOPE=1), or from a folder with train.jsonl and test.jsonl
        (RRLFORGE_GSM8K).
arith   word problems of two or three steps for the tiny model:
        "小明有27个杯子。变成2倍。又买20个。现在有多少个？" -> "27*2=54\n54+20=74\n\boxed{74}"
        Each problem has a key, its numbers in order: (27, 2, 20). A hash of the key alone says whether it
        belongs to training or to the test: no test problem, reworded or with other operations, is trained on.
"""
from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import httpx
from jinja2 import TemplateError

from rrlforge.answers import extract_answer
from rrlforge.errors import ForgeError


@dataclass(frozen=True)
class Problem:
    """A question, its gold answer (the number alone), and a solution in the words of the data set."""

    question: str
    answer: str
    solution: str = ""


@dataclass(frozen=True)
class Task:
    """Problems to train on, held-out problems, and how to ask: `instruction` follows on a line of its own."""

    name: str
    instruction: str
    train: list[Problem]
    test: list[Problem]
    max_new_tokens: int


def load_task(name: str, data: str | Path | None = None) -> Task:
    """The task "gsm8k" or "arith". `data`, for gsm8k: a folder with train.jsonl and test.jsonl, or a hub id.

    Raises `ForgeError` for an unknown name, for data that cannot be read (naming file and line), and when the
    hub does not answer (saying what to set instead).
    """
    if name == "arith":
        if data:
            raise ForgeError(f"task arith is generated: leave out data ({data})")
        return load_arith()
    if name == "gsm8k":
        return load_gsm8k(data)
    raise ForgeError(f"unknown task {name!r}: choose gsm8k or arith")


# ---------------------------------------------------------------- prompts

# What a template can raise: jinja2's own errors, and what Python says of its expressions.
TEMPLATE_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def prompt_text(tokenizer, problem: Problem, task: Task, thinking: bool = False) -> str:
    """The prompt up to where the model answers, by the tokenizer's chat template.

    With thinking=False Qwen3's template closes an empty think block: it belongs to the prompt. Templates that
    do not know `enable_thinking` ignore it. Raises `ForgeError` where the tokenizer has no chat template, or
    one that cannot be read or refuses a question of a user.
    """
    model = getattr(tokenizer, "name_or_path", "") or "this model"
    if not tokenizer.chat_template:
        raise ForgeError(f"the tokenizer of {model} has no chat template: take an instruct or chat model")
    content = f"{problem.question}\n{task.instruction}" if task.instruction else problem.question
    try:
        return tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False,
                                             add_generation_prompt=True, enable_thinking=thinking)
    except TEMPLATE_ERRORS as error:
        says = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ForgeError(f"the chat template of {model} fails ({says}): repair chat_template.jinja (or "
                         "chat_template in tokenizer_config.json), or fetch the model again") from None


def prompt_ids(tokenizer, problem: Problem, task: Task, thinking: bool = False) -> list[int]:
    """Token ids of `prompt_text`. The template writes the special tokens, so none is added."""
    return tokenizer(prompt_text(tokenizer, problem, task, thinking), add_special_tokens=False)["input_ids"]


# ---------------------------------------------------------------- GSM8K

GSM8K_INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
GSM8K_HUB, GSM8K_MODELSCOPE = "openai/gsm8k", "modelscope/gsm8k"
GSM8K_FILES = ["main/*", "*.jsonl"]
SPLITS = ("train", "test")
GOLD = re.compile(r"\s*[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+|/\d+)?\s*", re.ASCII)


def load_gsm8k(data: str | Path | None = None) -> Task:
    """GSM8K from `data`, from the folder that RRLFORGE_GSM8K names, from ModelScope, or from the hub."""
    source = str(data or os.environ.get("RRLFORGE_GSM8K", ""))
    folder = Path(os.path.expanduser(source))
    here = bool(source) and folder.is_dir()
    if not source:
        folder = download(GSM8K_MODELSCOPE if use_modelscope() else GSM8K_HUB, "dataset", GSM8K_FILES)
    elif not folder.exists() and HUB_ID.fullmatch(source):
        folder = download(source, "dataset", GSM8K_FILES)
    elif not here:
        raise ForgeError(f"GSM8K: no folder {source}: name one that holds train.jsonl and test.jsonl")
    is_jsonl = (folder / "train.jsonl").exists() or here and not (folder / "main").is_dir()
    read = read_jsonl if is_jsonl else read_parquet
    train, test = (read(folder, split) for split in SPLITS)
    return Task("gsm8k", GSM8K_INSTRUCTION, train, test, max_new_tokens=400)


def read_jsonl(folder: Path, split: str) -> list[Problem]:
    """The problems of folder/split.jsonl: an object a line, `question` and `answer` (ending in #### N)."""
    path = folder / f"{split}.jsonl"
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ForgeError(f"GSM8K: {path} is missing: the folder needs train.jsonl and test.jsonl") from None
    except UnicodeDecodeError as error:
        raise ForgeError(f"GSM8K: {path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise ForgeError(f"GSM8K: {path} cannot be read ({error.strerror}): put a file of one problem a line "
                         "there") from None
    problems = [gsm8k_problem(parse_json(line, f"{path}:{number}"), f"{path}:{number}")
                for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not problems:
        raise ForgeError(f"GSM8K: {path} is empty: one problem a line is expected")
    return problems


def parse_json(line: str, place: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ForgeError(f"GSM8K: {place} is no JSON ({error.msg} at column {error.colno}): "
                         "repair the line") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 100,000 deep
        raise ForgeError(f"GSM8K: {place} is JSON that cannot be read ({type(error).__name__}): one object "
                         "with the texts question and answer is expected") from None


def gsm8k_problem(row: object, place: str) -> Problem:
    """A row of the data set as a Problem; `place` is named in errors."""
    for name in ("question", "answer"):
        value = row.get(name) if isinstance(row, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise ForgeError(f"GSM8K: {place} has no text in field {name!r}: question and answer are needed")
        if lone := re.search("[\ud800-\udfff]", value):
            raise ForgeError(f"GSM8K: {place} has half a character (\\u{ord(lone[0]):x}) in field {name!r}: "
                             "write the character whole, or drop it")
    golds = row["answer"].split("####")[1:]
    answer = extract_answer(golds[0]) if len(golds) == 1 and GOLD.fullmatch(golds[0]) else None
    if answer is None:
        raise ForgeError(f"GSM8K: {place} has no gold number: the answer must end in '#### N', with one "
                         "number and nothing else behind its only ####")
    return Problem(row["question"].strip(), answer, row["answer"])


def read_parquet(folder: Path, split: str) -> list[Problem]:
    """The problems of the hub's layout: main/train-*.parquet, main/test-*.parquet."""
    import datasets

    files = sorted(map(str, folder.glob(f"main/{split}*.parquet")))
    if not files:
        raise ForgeError(f"GSM8K: {folder} has no main/{split}*.parquet and no {split}.jsonl: "
                         "set RRLFORGE_GSM8K to a folder with train.jsonl and test.jsonl")
    try:
        rows = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # its own errors, pyarrow's and the system's have no base in common
        raise ForgeError(f"GSM8K: {files[0]} does not read as parquet ({type(error).__name__}): fetch it again, "
                         "or set RRLFORGE_GSM8K to a folder with train.jsonl and test.jsonl") from None
    return [gsm8k_problem(row, f"{files[0]} row {number}") for number, row in enumerate(rows, 1)]


# ---------------------------------------------------------------- hubs

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MODELSCOPE = "https://www.modelscope.cn"
TIMEOUT = 10  # seconds that a hub may take to answer


def use_modelscope() -> bool:
    return os.environ.get("RRLFORGE_MODELSCOPE", "") not in ("", "0")


def download(repo: str, kind: str, patterns: list[str]) -> Path:
    """The local folder of a hub's repository ("model" or "dataset"), with the files that match `patterns`.

    Where the hub does not answer within TIMEOUT seconds, its own cache is used. Raises `ForgeError` where
    that holds no copy, saying what to set.
    """
    return (from_modelscope if use_modelscope() else from_hub)(repo, kind, patterns)


def from_hub(repo: str, kind: str, patterns: list[str]) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    answers = not constants.HF_HUB_OFFLINE and is_reachable(constants.ENDPOINT)
    silence = "is not asked (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else "does not answer"
    try:
        return Path(snapshot_download(repo, repo_type=kind, allow_patterns=patterns,
                                      local_files_only=not answers))
    except errors.RepositoryNotFoundError:
        raise ForgeError(f"{constants.ENDPOINT} has no {kind} {repo}, or it needs a login: check the name, "
                         "or name a local folder") from None
    except (OSError, httpx.HTTPError, errors.HfHubHTTPError) as error:
        raise missing(constants.ENDPOINT, repo, kind, None if answers else silence, error) from None


def from_modelscope(repo: str, kind: str, patterns: list[str]) -> Path:
    try:
        from modelscope import snapshot_download
    except ImportError:
        raise ForgeError("RRLFORGE_MODELSCOPE is set, its package missing: pip install modelscope") from None
    answers = is_reachable(MODELSCOPE)
    try:
        return Path(snapshot_download(repo, repo_type=kind, allow_patterns=patterns,
                                      local_files_only=not answers))
    except Exception as error:  # its own errors, requests' and urllib3's have no base in common
        raise missing(MODELSCOPE, repo, kind, None if answers else "does not answer", error) from None


def is_reachable(endpoint: str) -> bool:
    """Whether anything answers at `endpoint` within TIMEOUT seconds (the hub's client may wait minutes)."""
    try:
        httpx.head(endpoint, timeout=TIMEOUT)
    except httpx.TransportError:
        return False
    return True


def missing(endpoint: str, repo: str, kind: str, silence: str | None, error: Exception) -> ForgeError:
    """The error for a repository that neither hub nor cache gave; `silence` says why the hub did not."""
    what = f"gave no {kind} {repo} ({type(error).__name__})"
    if silence:
        what = f"{silence}, and no {kind} {repo} is cached"
    folder = "set RRLFORGE_GSM8K to a folder" if kind == "dataset" else "name a local folder"
    return ForgeError(f"{endpoint} {what}: set HF_ENDPOINT to a mirror, or RRLFORGE_MODELSCOPE=1, "
                      f"or {folder}")


# ---------------------------------------------------------------- arithmetic

ARITH_VERSION = 1       # raise it when the problems change: cached models are keyed by it
ARITH_TRAIN, ARITH_TEST = 6000, 512
SALT = "rrlforge-held-out-1"
LARGEST, START, CHANGE = 50, (5, 30), (2, 15)  # no value above 50; starts with 5 to 30; adds or takes 2 to 15

NAMES = ("小明", "小红", "小刚", "小华", "小丽", "小军", "小雨", "小林")
ITEMS = (("个", "杯子"), ("个", "苹果"), ("支", "铅笔"), ("本", "书"), ("颗", "糖"), ("张", "卡片"), ("块", "饼干"), ("只", "气球"))
VERBS = {"+": ("又买{b}{m}", "捡到{b}{m}", "收到{b}{m}"), "-": ("送出{b}{m}", "卖掉{b}{m}", "丢了{b}{m}"),
         "*": ("变成{b}倍",)}
ASK = ("现在有多少{m}？", "最后有多少{m}？")


@dataclass(frozen=True)
class Step:
    """left op right = value, with op one of + - *."""

    left: int
    op: str
    right: int
    value: int


@dataclass(frozen=True)
class WordProblem:
    """A generated problem: the question and the two or three steps that answer it."""

    question: str
    steps: tuple[Step, ...]

    def as_problem(self) -> Problem:
        return Problem(self.question, str(self.steps[-1].value), solution_text(self.steps))


def numbers_in_order(steps: tuple[Step, ...]) -> tuple[int, ...]:
    """The numbers of the question in their order: the key of the split."""
    return (steps[0].left, *(step.right for step in steps))


def solution_text(steps: tuple[Step, ...]) -> str:
    r"""One step a line, then \boxed{...} with the last value."""
    return "".join(f"{s.left}{s.op}{s.right}={s.value}\n" for s in steps) + f"\\boxed{{{steps[-1].value}}}"


def is_held_out(numbers: tuple[int, ...]) -> bool:
    """Whether problems with these numbers in this order belong to the test: about one key in ten."""
    return hashlib.sha256(f"{SALT}:{numbers}".encode()).digest()[0] < 26


def word_problems(rng: random.Random, held_out: bool = False) -> Iterator[WordProblem]:
    """Endless problems of one side of the split, drawn from `rng`."""
    while True:
        steps = draw_steps(rng)
        if is_held_out(numbers_in_order(steps)) == held_out:
            yield WordProblem(tell(rng, steps), steps)


def draw_steps(rng: random.Random) -> tuple[Step, ...]:
    value, steps = rng.randint(*START), []
    for _ in range(rng.choice((2, 3))):
        choices = [(op, low, high) for op, low, high in (
            ("+", CHANGE[0], min(CHANGE[1], LARGEST - value)),
            ("-", CHANGE[0], min(CHANGE[1], value - 1)),
            ("*", 2, min(3, LARGEST // value))) if low <= high]
        op, low, high = rng.choice(choices)
        right = rng.randint(low, high)
        steps.append(Step(value, op, right, compute(value, op, right)))
        value = steps[-1].value
    return tuple(steps)


def compute(left: int, op: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[op]


def tell(rng: random.Random, steps: tuple[Step, ...]) -> str:
    """The question in words, for steps already drawn."""
    measure, item = rng.choice(ITEMS)
    parts = [f"{rng.choice(NAMES)}有{steps[0].left}{measure}{item}"]
    parts += [rng.choice(VERBS[step.op]).format(b=step.right, m=measure) for step in steps]
    return "。".join(parts) + "。" + rng.choice(ASK).format(m=measure)


@lru_cache(maxsize=1)
def load_arith() -> Task:
    """The fixed lists: 6,000 problems to train on and 512 to test with, every key once in its list."""
    train, test = distinct(ARITH_TRAIN, "train", False), distinct(ARITH_TEST, "test", True)
    return Task("arith", "", train, test, max_new_tokens=48)


def distinct(count: int, seed: str, held_out: bool) -> list[Problem]:
    found: dict[tuple[int, ...], Problem] = {}
    for problem in word_problems(random.Random(f"{SALT}-{seed}"), held_out):
        found.setdefault(numbers_in_order(problem.steps), problem.as_problem())
        if len(found) == count:
            return list(found.values())


def arith_characters() -> str:
    """Every character of the arithmetic questions that is not ASCII, sorted."""
    told = [verb for verbs in VERBS.values() for verb in verbs]
    words = [*NAMES, *ASK, *told, *(word for pair in ITEMS for word in pair)]
    return "".join(sorted({c for word in words for c in word + "有。" if ord(c) > 126}))
