"""Each lesson of L1 ends by naming the lines of forge.py that it has explained: they must be there."""

import ast

import jupytext
import pytest

from rrlforge import forge, notebook
from rrlforge.course import chapter_path, load_course
from rrlforge.errors import ForgeError

WRITTEN = [lesson for lesson in load_course().lessons if lesson.stage == "L1" and chapter_path(lesson)]


@pytest.fixture
def shown(monkeypatch):
    out = []
    monkeypatch.setattr(notebook, "display", lambda data, raw: out.append(data))
    return out


def calls_of(lesson):
    """The arguments of the lesson's calls of forge_lines, read from its cells without running them."""
    cells = [c.source for c in jupytext.read(chapter_path(lesson)).cells if c.cell_type == "code"]
    nodes = [n for cell in cells if "forge_lines(" in cell for n in ast.walk(ast.parse(cell))]
    return [[ast.literal_eval(x) for x in n.args] for n in nodes
            if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "forge_lines"]


@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_lesson_names_lines_that_stand_in_forge(lesson, shown):
    (rows,) = calls_of(lesson)
    assert len(rows) >= 2
    notebook.forge_lines(*rows)
    assert shown[0]["text/html"].count("<li>") == len(rows)


def test_lines_are_shown_with_their_numbers_and_words(shown):
    notebook.forge_lines(("优势 `A`", "return centred.masked_fill(flat, 0.0)"), ("k3", "def k3(", "log_r.exp() - log_r - 1"))
    lines = open(forge.__file__, encoding="utf8").read().split("\n")
    one = lines.index("    return centred.masked_fill(flat, 0.0)") + 1
    first = next(i for i, line in enumerate(lines, 1) if line.startswith("def k3("))
    text = shown[0]["text/plain"].split("\n")
    assert text[0] == "lib/rrlforge/forge.py"
    assert text[1] == f"优势 `A` 第 {one} 行" and text[2] == "    return centred.masked_fill(flat, 0.0)"
    assert text[3] == f"k3 第 {first}–{first + 3} 行" and len(text) == 8
    assert "<code>A</code>" in shown[0]["text/html"] and f"第 {one} 行" in shown[0]["text/html"]


@pytest.mark.parametrize("row, message", [
    (("优势", "return centred.filled("), "0 lines contain 'return centred.filled"),
    (("优势", "torch"), "lines contain 'torch', not one"),
    (("", "def k3("), "needs words"),
    (("没有行",), "needs words and one line"),
    (("倒着", "log_r.exp() - log_r - 1", "def k3("), "a first and a last line"),
])
def test_a_line_that_is_gone_or_not_the_only_one_is_an_error_in_one_line(row, message, shown):
    with pytest.raises(ForgeError, match=message) as error:
        notebook.forge_lines(row)
    assert "\n" not in str(error.value) and shown == []
