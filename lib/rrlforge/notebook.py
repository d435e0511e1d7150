"""What a lesson's cells call: one setup, the library's own source, the quiz, the origin of a record.

Each shows HTML that works alike in the built book and in JupyterLab, with a plain-text fallback.
"""

import html
import importlib
import inspect
import json
import os
import random
import re
import textwrap
import warnings
from importlib.resources import files
from pathlib import Path

import yaml
from IPython.display import display

from . import records
from .course import find_root, load_course
from .errors import ForgeError

ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
KINDS = ("single", "multiple", "numeric")
ANSWER_KEYS, NUMERIC_KEYS = (
    {"text", "right", "why"},
    {"id", "kind", "question", "value", "tolerance", "why", "unit"},
)


def setup(seed=0):
    """Quiet libraries, one seed for Python, NumPy and torch, Chinese labels in figures.

    A variable that is already set stays: `TQDM_DISABLE=0 make lab` brings progress bars back.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm without ipywidgets
    import numpy
    import torch

    from .plots import use_cjk

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    use_cjk()


# ---------------------------------------------------------------- source
def show_source(target, start=None, end=None):
    """Show source code of the library as it stands in its file, with the file's line numbers.

    `target` is "rrlforge.forge" (the module), "rrlforge.forge:grpo_loss" (a name in it; dots go deeper), or
    a module, class or function. `start` and `end` are first and last line number in the file, or texts: then
    the first line of the target that contains the text. ForgeError if the name, text or line is not there.
    """
    path, first, lines = _source(target)
    a = first if start is None else _line(start, path, first, lines, first)
    b = first + len(lines) - 1 if end is None else _line(end, path, first, lines, a)
    if not first <= a <= b < first + len(lines):
        raise ForgeError(f"{path}: lines {a}-{b} are not within {first}-{first + len(lines) - 1}")
    _show_lines(path, a, lines[a - first : b - first + 1])


def _source(target):
    """(path shown, number of the first line, lines) of a target."""
    obj = inspect.unwrap(_resolve(target) if isinstance(target, str) else target)
    try:
        file = Path(inspect.getsourcefile(obj)).resolve()
        lines, first = inspect.getsourcelines(obj)
    except (TypeError, OSError) as error:
        raise ForgeError(f"{target!r}: has no source to show; give a module, class or function") from error
    root = find_root()
    path = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
    return path, max(first, 1), [line.rstrip("\n") for line in lines]


def _resolve(target):
    module, _, name = target.partition(":")
    try:
        obj = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ForgeError(f"show_source({target!r}): no module {error.name!r}") from error
    for part in filter(None, name.split(".")):
        if not hasattr(obj, part):
            raise ForgeError(f"show_source({target!r}): {module} has no {name!r}")
        obj = getattr(obj, part)
    return obj


def _line(mark, path, first, lines, after):
    """The line number that `mark` (a number, or a text to find from line `after` on) stands for."""
    if isinstance(mark, int):
        return mark
    for number, line in enumerate(lines, first):
        if number >= after and mark in line:
            return number
    raise ForgeError(f"{path}: no line contains {mark!r}")


def _highlight(code):
    """Python as spans of HTML, line for line."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(code, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))


def _show_lines(path, first, lines):
    last = first + len(lines) - 1
    code = _highlight("\n".join(lines))
    width = len(str(last))
    rows = "\n".join(
        f'<span class="linenos">{n:>{width}}</span>{row}'
        for n, row in enumerate(code.split("\n")[: len(lines)], first)
    )
    where = f"{path} · 第 {first}–{last} 行"
    plain = "\n".join(
        [f"{path}:{first}-{last}", *(f"{n:>{width}}  {x}".rstrip() for n, x in enumerate(lines, first))]
    )
    _show(
        f'<figure class="rf-source"><figcaption>{html.escape(where)}</figcaption>'
        f'<div class="highlight"><pre tabindex="0">{rows}</pre></div></figure>',
        plain,
    )


# ---------------------------------------------------------------- what a lesson has explained
def forge_lines(*rows):
    r"""Show the lines of forge.py that a lesson has explained, one row a concept, with the file's line numbers.

    A row is (words, line) or (words, first, last): `line` is a text that stands in one line of forge.py and no
    other; first and last bound a few lines. The words may hold `code` and \( math \). ForgeError if a text stands
    nowhere or in several lines: what the lesson says of forge.py is then no longer so.
    """
    path, _, lines = _source("rrlforge.forge")
    items, plain = [], []
    for words, *marks in rows:
        found = [_only_line(mark, path, lines) for mark in marks]
        if not _text(words) or not 1 <= len(found) <= 2 or found != sorted(found):
            raise ForgeError(f"forge_lines: {words!r} needs words and one line, or a first and a last line")
        a, b = found[0], found[-1]
        code = textwrap.dedent("\n".join(lines[a - 1 : b]))
        where = f"第 {a} 行" if a == b else f"第 {a}–{b} 行"
        items.append(f"<li><p>{inline(words)} <span>{where}</span></p>"
                     f'<div class="highlight"><pre>{_highlight(code)}</pre></div></li>')
        plain.append(f"{words} {where}\n{textwrap.indent(code, '    ')}")
    _show(f'<ol class="rf-lines" aria-label="{html.escape(path)}">{"".join(items)}</ol>', "\n".join([path, *plain]))


def _only_line(mark, path, lines):
    """The number of the one line that contains the text `mark`."""
    found = [number for number, line in enumerate(lines, 1) if mark in line]
    if len(found) != 1:
        raise ForgeError(f"{path}: {len(found)} lines contain {mark!r}, not one: mend the lesson that names it")
    return found[0]


# ---------------------------------------------------------------- quiz
def quiz(lesson_id):
    """Show the quiz of a lesson from book/quizzes/<lesson_id>.yaml; `load_quiz` describes the file."""
    questions = load_quiz(lesson_id)
    ids = " ".join(f"{lesson_id}/{q['id']}" for q in questions)
    forms = "".join(_form(lesson_id, n, q) for n, q in enumerate(questions, 1))
    plain = "\n".join([f"自测 {lesson_id}", *(f"{n}. {q['question']}" for n, q in enumerate(questions, 1))])
    _show(
        f'<div class="rf-quiz tex2jax_process mathjax_process" data-lesson="{html.escape(lesson_id)}" '
        f'data-questions="{html.escape(ids)}">{forms}</div>',
        plain,
    )


def load_quiz(lesson_id, path=None):
    r"""Read and validate a quiz: a YAML list of questions, at least one single and one multiple choice.

    - id: mask                      # unique in the file: letters, digits, "-"
      kind: single                  # one right answer; `multiple`: two or more right answers
      question: 为什么补齐的位置要乘 `mask`？   # `code` and \( math \) are allowed in every text
      answers:
        - {text: 它们不是采样出来的, right: true, why: 没有采样，就没有可以改的概率。}
        - {text: 省显存, why: 乘 0 不会少占一个字节。}      # each answer needs its own explanation
    - id: flat
      kind: numeric
      question: 一组 8 条全对，优势是多少？
      value: 0
      tolerance: 0.001              # the largest accepted distance from `value`
      unit: GiB                     # optional
      why: 减去组均值以后全是 0。

    ForgeError in one line names the file, the question and the fault.
    """
    load_course().lesson(lesson_id)
    path = Path(path or find_root() / "book" / "quizzes" / f"{lesson_id}.yaml")
    try:
        questions = yaml.safe_load(path.read_text("utf8"))
    except OSError as error:
        raise ForgeError(
            f"{path}: cannot be read ({error.strerror}); write the quiz of {lesson_id} there"
        ) from error
    except yaml.YAMLError as error:
        raise ForgeError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(questions, list) or not all(isinstance(q, dict) for q in questions):
        raise ForgeError(f"{path}: must be a list of questions, each with id, kind and question")
    for question in questions:
        _check_question(question, path)
    ids = [q["id"] for q in questions]
    if len(set(ids)) != len(ids):
        raise ForgeError(f"{path}: a question id occurs twice in {', '.join(ids)}")
    for kind in ("single", "multiple"):
        if kind not in [q["kind"] for q in questions]:
            raise ForgeError(f"{path}: needs at least one question of kind {kind}")
    return questions


def _check_question(q, path):
    where = f"{path}: question {q.get('id')!r}"
    if not re.fullmatch(r"[A-Za-z0-9-]+", str(q.get("id", ""))):
        raise ForgeError(f"{where}: id must be letters, digits and '-'")
    if q.get("kind") not in KINDS:
        raise ForgeError(f"{where}: kind {q.get('kind')!r}; use {', '.join(KINDS)}")
    if not _text(q.get("question")):
        raise ForgeError(f"{where}: question must be a text")
    allowed = NUMERIC_KEYS if q["kind"] == "numeric" else {"id", "kind", "question", "answers"}
    if extra := set(q) - allowed:
        raise ForgeError(f"{where}: unknown key {', '.join(sorted(extra))}")
    (_check_numeric if q["kind"] == "numeric" else _check_choice)(q, where)


def _check_numeric(q, where):
    for key in ("value", "tolerance"):
        if not isinstance(q.get(key), (int, float)) or isinstance(q.get(key), bool):
            raise ForgeError(f"{where}: {key} must be a number")
    if not _text(q.get("why")):
        raise ForgeError(f"{where}: why must explain the answer")


def _check_choice(q, where):
    answers = q.get("answers")
    if not isinstance(answers, list) or len(answers) < 2 or not all(isinstance(a, dict) for a in answers):
        raise ForgeError(f"{where}: answers must be a list of two or more, each with text and why")
    for number, answer in enumerate(answers, 1):
        if extra := set(answer) - ANSWER_KEYS:
            raise ForgeError(f"{where}, answer {number}: unknown key {', '.join(sorted(map(str, extra)))}")
        if not _text(answer.get("text")) or not _text(answer.get("why")):
            raise ForgeError(f"{where}, answer {number}: text and why must both be texts (quote numbers)")
    right = sum(a.get("right") is True for a in answers)
    if q["kind"] == "single" and right != 1:
        raise ForgeError(f"{where}: kind single needs exactly one answer with right: true, not {right}")
    if q["kind"] == "multiple" and right < 2:
        raise ForgeError(f"{where}: kind multiple needs two or more answers with right: true, not {right}")


def _text(value):
    return isinstance(value, str) and bool(value.strip())


def _form(lesson_id, number, q):
    name = html.escape(f"{lesson_id}/{q['id']}")
    hint = {"single": "单选", "multiple": "多选", "numeric": "填数"}[q["kind"]]
    body = _numeric(q, name) if q["kind"] == "numeric" else _choices(q, name)
    return (
        f'<form class="rf-question" data-id="{name}" data-kind="{q["kind"]}"><fieldset>'
        f'<legend><span class="rf-hint">{number} · {hint}</span> {inline(q["question"])}</legend>{body}'
        f'<div class="rf-submit"><button type="submit">提交答案</button><output role="status"></output></div>'
        f"</fieldset></form>"
    )


def _choices(q, name):
    kind = "radio" if q["kind"] == "single" else "checkbox"
    right = [int(a.get("right") is True) for a in q["answers"]]
    rows = "".join(
        f'<li><label><input type="{kind}" name="{name}" value="{i}" data-right="{right[i]}">'
        f'<span>{inline(a["text"])}</span></label><p class="rf-why" hidden>{inline(a["why"])}</p></li>'
        for i, a in enumerate(q["answers"])
    )
    return f'<ol class="rf-answers">{rows}</ol>'


def _numeric(q, name):
    return (
        f'<p class="rf-number"><label>你的答案 <input type="text" inputmode="decimal" autocomplete="off" '
        f'name="{name}" data-value="{q["value"]}" data-tolerance="{q["tolerance"]}"></label> '
        f'{html.escape(q.get("unit", ""))}</p><p class="rf-why" hidden>{inline(q["why"])}</p>'
    )


def inline(text):
    r"""HTML of a text: escaped, `code` as <code>, \( math \) left for MathJax."""
    parts = re.split(r"`([^`]+)`", text.strip())
    return "".join(
        f"<code>{html.escape(p)}</code>" if i % 2 else html.escape(p, quote=False)
        for i, p in enumerate(parts)
    )


# ---------------------------------------------------------------- records
def record(name):
    """Show where record `name` comes from (a caption under what the lesson shows) and return the record."""
    found = records.load(name)
    line = records.origin_line(found)
    _show(f'<p class="rf-origin">{html.escape(line)}</p>', line)
    return found


# ---------------------------------------------------------------- calculators
def calculator(name):
    """Show the calculator of module rrlforge.<name> ("vram"): its formulas run in the page, no kernel needed."""
    from . import hardware
    from .tojs import form_html

    module = importlib.import_module(f"rrlforge.{name}")
    cards = [(card.name, card.cuda_gib) for card in hardware.CARDS]
    css, binder = ((files("rrlforge") / "data" / f"calculator.{kind}").read_text("utf8") for kind in ("css", "js"))
    spec = module.calculator_spec(cards)
    display({"text/html": form_html(spec, module.javascript(), css, binder), "text/plain": spec["title"]}, raw=True)
    display({"application/javascript": binder}, raw=True)


# ---------------------------------------------------------------- output
def _show(body, plain):
    """Display HTML. JupyterLab runs the script that styles and binds it; the book's pages load its files."""
    display({"text/html": body, "text/plain": plain}, raw=True)
    display({"application/javascript": _lab_script()}, raw=True)


def _lab_script():
    data = files("rrlforge") / "data"
    css = json.dumps((data / "book.css").read_text("utf8"), ensure_ascii=False)
    style = (
        'if(!document.getElementById("rf-css")){const s=document.createElement("style");s.id="rf-css";'
        f"s.textContent={css};document.head.append(s);}}"
    )
    return style + (data / "book.js").read_text("utf8")
