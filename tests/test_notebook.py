"""What a lesson's cells call: source, quiz, record."""

import ast
import inspect
import os
import random
import re
import types
import warnings
from html.parser import HTMLParser

import numpy
import pytest
import torch
import yaml

from rrlforge import notebook, records
from rrlforge.course import chapter_path, find_root, load_course
from rrlforge.errors import ForgeError

GOOD = yaml.safe_load(r"""
- id: mask
  kind: single
  question: 为什么乘 `mask`，\(A_i < 0\)？
  answers:
    - {text: 不是采样出来的, right: true, why: 没有采样。}
    - {text: <b>省显存</b>, why: 不省。}
- id: parts
  kind: multiple
  question: 存什么？
  answers:
    - {text: ids, right: true, why: 会变。}
    - {text: log-prob, right: true, why: 分母。}
    - {text: 字体, right: false, why: 无关。}
- id: rows
  kind: numeric
  question: 多少行？
  value: 32
  tolerance: 0.5
  why: 4 × 8。
""")


@pytest.fixture
def shown(monkeypatch):
    out = []
    monkeypatch.setattr(notebook, "display", lambda data, raw: out.append(data))
    return out


def quiz_file(tmp_path, questions):
    path = tmp_path / "quiz.yaml"
    path.write_text(yaml.safe_dump(questions, allow_unicode=True), "utf8")
    return path


# ---- setup
def test_setup_makes_every_generator_repeat():
    notebook.setup(seed=3)
    first = random.random(), numpy.random.rand(), torch.rand(1).item()
    notebook.setup(seed=3)
    assert first == (random.random(), numpy.random.rand(), torch.rand(1).item())


def test_setup_keeps_what_the_reader_has_set(monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "0")
    notebook.setup()
    assert os.environ["TQDM_DISABLE"] == "0"


def test_setup_silences_the_progress_bar_that_is_not_there():
    notebook.setup()
    assert any(x[1] and x[1].match("IProgress not found") for x in warnings.filters)


# ---- show_source
WIDE = 85  # characters of code that a page 1360 px wide shows without scrolling
SHOWN = sorted({call for lesson in load_course().lessons if (path := chapter_path(lesson))
                for call in re.findall(r"^show_source\((\"rrlforge\.(?:answers|rewards).*)\)$", path.read_text("utf8"), re.M)})


@pytest.mark.parametrize("arguments", SHOWN)
def test_source_that_a_lesson_shows_needs_no_scrolling(arguments, shown):
    notebook.show_source(*ast.literal_eval(f"({arguments},)"))
    lines = [re.sub(r"^ *\d+  ", "", line) for line in shown[0]["text/plain"].split("\n")[1:]]
    assert lines and [line for line in lines if len(line) > WIDE] == []


def test_source_is_shown_as_it_stands_in_its_file(shown):
    notebook.show_source("rrlforge.notebook:inline")
    lines, first = inspect.getsourcelines(notebook.inline)
    plain = shown[0]["text/plain"].split("\n")
    assert plain[0] == f"lib/rrlforge/notebook.py:{first}-{first + len(lines) - 1}"
    assert [x.split(None, 1)[0] for x in plain[1:]] == [str(first + i) for i in range(len(lines))]
    assert plain[1].endswith(lines[0].rstrip())
    text = re.sub(r"<[^>]+>", "", shown[0]["text/html"])
    assert "def inline(text):" in text and f"第 {first}–{first + len(lines) - 1} 行" in text


def test_object_and_name_show_the_same(shown):
    notebook.show_source("rrlforge.notebook:inline")
    notebook.show_source(notebook.inline)
    assert shown[0] == shown[2]


def test_part_by_numbers_and_by_texts_is_the_same(shown):
    lines, first = inspect.getsourcelines(notebook.load_quiz)
    notebook.show_source("rrlforge.notebook:load_quiz", "load_course()", "path = Path(")
    where = next(i for i, x in enumerate(lines) if "load_course()" in x) + first
    notebook.show_source("rrlforge.notebook:load_quiz", where, where + 1)
    assert shown[0] == shown[2]
    assert len(shown[0]["text/plain"].split("\n")) == 3


def test_markup_in_source_is_escaped(shown):
    notebook.show_source("rrlforge.notebook:_form")
    assert "<form" not in shown[0]["text/html"]
    assert "&lt;form" in shown[0]["text/html"]


def test_module_is_shown_whole(shown):
    notebook.show_source("rrlforge.errors")
    assert shown[0]["text/plain"].startswith("lib/rrlforge/errors.py:1-")


@pytest.mark.parametrize(
    "target, args, message",
    [
        ("rrlforge.nothing", (), "rrlforge.nothing"),
        ("rrlforge.notebook:absent", (), "has no 'absent'"),
        ("rrlforge.notebook:KINDS", (), "no source"),
        ("rrlforge.notebook:inline", ("no such text",), "no such text"),
        ("rrlforge.notebook:inline", (1, 2), "not within"),
        ("rrlforge.notebook:inline", (None, 9999), "not within"),
    ],
)
def test_source_that_is_not_there_is_an_error_in_one_line(target, args, message):
    with pytest.raises(ForgeError, match=message) as error:
        notebook.show_source(target, *args)
    assert "\n" not in str(error.value)


def test_function_from_a_cell_is_named_without_a_path_of_this_machine(shown, tmp_path):
    module = types.ModuleType("elsewhere")
    file = tmp_path / "elsewhere.py"
    file.write_text("def f():\n    return 1\n", "utf8")
    exec(compile(file.read_text("utf8"), str(file), "exec"), module.__dict__)
    notebook.show_source(module.f)
    assert shown[0]["text/plain"].startswith("elsewhere.py:1-2")


# ---- quiz
class Form(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.inputs, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "input":
            self.inputs.append(dict(attrs))


def test_quiz_is_a_form_with_one_input_an_answer(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "load_quiz", lambda _: GOOD)
    notebook.quiz("L2-1")
    form = Form(shown[0]["text/html"])
    assert [x["type"] for x in form.inputs] == ["radio"] * 2 + ["checkbox"] * 3 + ["text"]
    assert [x.get("data-right") for x in form.inputs[:5]] == ["1", "0", "1", "1", "0"]
    assert form.inputs[5]["data-value"] == "32"
    assert form.open.count("fieldset") == form.open.count("legend") == 3 and form.open.count("label") == 6
    assert "b" not in form.open, "markup in an answer is text"
    assert r"\(A_i &lt; 0\)" in shown[0]["text/html"] and "<code>mask</code>" in shown[0]["text/html"]
    assert "1. 为什么乘" in shown[0]["text/plain"]


def test_quiz_carries_its_script_for_jupyterlab(shown, monkeypatch):
    monkeypatch.setattr(notebook, "load_quiz", lambda _: GOOD)
    notebook.quiz("L2-1")
    script = shown[1]["application/javascript"]
    assert "rrlforge-progress-v1" in script and ".rf-question" in script


def test_good_quiz_loads(tmp_path):
    assert notebook.load_quiz("L2-1", quiz_file(tmp_path, GOOD)) == GOOD


def changed(index, **changes):
    questions = yaml.safe_load(yaml.safe_dump(GOOD))
    questions[index].update(changes)
    return questions


TWO = [{"text": "a", "why": "b"}, {"text": "c", "why": "d"}]


@pytest.mark.parametrize(
    "questions, message",
    [
        ({}, "list of questions"),
        (["x"], "list of questions"),
        (GOOD[:1], "multiple"),
        (GOOD[1:], "single"),
        (changed(0, id="a b"), "'a b'"),
        (changed(1, id="mask"), "twice"),
        (changed(0, kind="essay"), "'essay'"),
        (changed(0, question=""), "question must be a text"),
        (changed(0, hint="x"), "unknown key hint"),
        (changed(0, answers=TWO), "exactly one answer with right: true, not 0"),
        (changed(0, answers=[]), "two or more"),
        (changed(1, answers=GOOD[0]["answers"]), "not 1"),
        (changed(0, answers=[{"text": "a"}, {"text": "b"}]), "answer 1.*why"),
        (changed(0, answers=[{"text": 42, "why": "x"}, {"text": "b", "why": "y"}]), "quote numbers"),
        (changed(0, answers=[dict(TWO[0], ok=True), TWO[1]]), "unknown key ok"),
        (changed(2, value="32"), "value must be a number"),
        (changed(2, why=""), "why must explain"),
    ],
)
def test_broken_quiz_is_named_in_one_line(questions, message, tmp_path):
    with pytest.raises(ForgeError, match=message) as error:
        notebook.load_quiz("L2-1", quiz_file(tmp_path, questions))
    assert "quiz.yaml" in str(error.value) and "\n" not in str(error.value)


def test_absent_quiz_and_unknown_lesson_are_named(tmp_path):
    with pytest.raises(ForgeError, match="none.yaml.*L2-1"):
        notebook.load_quiz("L2-1", tmp_path / "none.yaml")
    with pytest.raises(ForgeError, match="L9-1"):
        notebook.load_quiz("L9-1")
    (tmp_path / "bad.yaml").write_text("- {", "utf8")
    with pytest.raises(ForgeError, match="not YAML") as error:
        notebook.load_quiz("L2-1", tmp_path / "bad.yaml")
    assert "\n" not in str(error.value)


def test_every_quiz_of_the_book_is_valid_and_belongs_to_a_lesson():
    for path in (find_root() / "book" / "quizzes").glob("*.yaml"):
        notebook.load_quiz(path.stem)


@pytest.mark.parametrize("lesson", [x for x in load_course().lessons if chapter_path(x)], ids=lambda x: x.id)
def test_every_written_lesson_shows_its_own_quiz(lesson):
    assert f'quiz("{lesson.id}")' in chapter_path(lesson).read_text("utf8")
    notebook.load_quiz(lesson.id)


# ---- record
def test_record_is_shown_with_its_origin_and_returned(shown, monkeypatch):
    found = {
        "figures": {"x": 1},
        "series": {},
        "origin": records.origin("card <1>", "tiny", "arith", "make book"),
    }
    monkeypatch.setattr(records, "load", lambda name: found)
    assert notebook.record("demo") is found
    assert "card &lt;1&gt;" in shown[0]["text/html"] and "make book" in shown[0]["text/plain"]


def test_a_decorated_function_is_shown_from_its_own_file(shown):
    notebook.show_source("rrlforge.engines:VLLMEngine._sync_ipc")
    assert shown[0]["text/plain"].startswith("lib/rrlforge/engines.py:")
