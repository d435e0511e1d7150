"""The course data and what derives from it."""

import dataclasses
import re

import pytest
import yaml

from rrlforge import course as course_module
from rrlforge.course import chapter_doc, chapter_path, find_root, lesson_of, load_course, toc
from rrlforge.errors import ForgeError

COURSE = load_course()


def write(tmp_path, change):
    data = yaml.safe_load((find_root() / "book" / "course.yaml").read_text("utf8"))
    change(data)
    path = tmp_path / "course.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), "utf8")
    return path


def test_course_has_27_lessons_in_5_stages_and_3_routes():
    assert len(COURSE.lessons) == 27
    assert [len(stage.lessons) for stage in COURSE.stages] == [6, 5, 6, 5, 5]
    assert sum(lesson.minutes for lesson in COURSE.lessons) == 1035
    assert [len(route.lessons) for route in COURSE.routes] == [12, 17, 27]


def test_full_route_is_the_whole_course_in_order():
    assert COURSE.route("full").lessons == COURSE.lessons


def test_next_and_previous_follow_the_route():
    assert COURSE.next("L0-6").id == "L1-1"
    assert COURSE.next("L0-5", "run-first").id == "L2-1"
    assert COURSE.previous("L2-1", "run-first").id == "L0-5"
    assert COURSE.next("L4-5") is None and COURSE.previous("L0-1") is None


def test_neighbour_of_a_lesson_off_the_route_is_an_error():
    with pytest.raises(
        ForgeError, match="L1-1.*run-first|run-first.*L1-1|no lesson on route run-first 'L1-1'"
    ):
        COURSE.next("L1-1", "run-first")


def test_unknown_lesson_names_the_ones_there_are():
    with pytest.raises(ForgeError, match="'L9-9'.*L0-1"):
        COURSE.lesson("L9-9")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d["lessons"].pop(), "26 lessons"),
        (lambda d: d["lessons"][0].update(minutes=21), "sum to 1036"),
        (lambda d: d["lessons"][0].update(minutes="20"), "minutes '20'"),
        (lambda d: d["lessons"][0].update(kind="读书"), "kind '读书'"),
        (lambda d: d["lessons"][0].update(id="L0-9"), "numbered"),
        (lambda d: d["lessons"][0].update(id="first"), "must look like"),
        (lambda d: d["lessons"].reverse(), "grouped by stage"),
        (lambda d: d["routes"][0]["lessons"].append("L0-1"), "names a lesson twice"),
        (lambda d: d["routes"][0]["lessons"].append("L7-1"), "'L7-1'"),
        (lambda d: d["routes"].pop(), "'full'"),
        (lambda d: d.pop("stages"), "stages"),
    ],
)
def test_broken_course_is_named_in_one_line(tmp_path, change, message):
    with pytest.raises(ForgeError, match=message) as error:
        load_course(write(tmp_path, change))
    assert "\n" not in str(error.value)


def test_absent_or_unreadable_course_is_named(tmp_path):
    with pytest.raises(ForgeError, match="none.yaml"):
        load_course(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("stages: [", "utf8")
    with pytest.raises(ForgeError, match="bad.yaml"):
        load_course(tmp_path / "bad.yaml")


def test_chapter_is_found_by_its_number(tmp_path):
    (tmp_path / "chapters" / "L2").mkdir(parents=True)
    lesson = COURSE.lesson("L2-1")
    assert chapter_path(lesson, tmp_path) is None and chapter_doc(lesson, tmp_path) is None
    (tmp_path / "chapters/L2/1-rollout.md").touch()
    (tmp_path / "chapters/L2/11-other.md").touch()
    assert chapter_doc(lesson, tmp_path) == "chapters/L2/1-rollout"
    (tmp_path / "chapters/L2/1-again.md").touch()
    with pytest.raises(ForgeError, match="1-again.md, 1-rollout.md"):
        chapter_path(lesson, tmp_path)


def test_lesson_of_a_page():
    assert lesson_of("chapters/L2/3-grpo-core") == "L2-3"
    with pytest.raises(ForgeError, match="book/index"):
        lesson_of("book/index")


def test_toc_lists_written_lessons_only(tmp_path):
    (tmp_path / "chapters" / "L2").mkdir(parents=True)
    (tmp_path / "chapters/L2/2-reward.md").touch()
    parts = yaml.safe_load(toc(COURSE, tmp_path))["parts"]
    assert parts[0] == {
        "caption": "L2 手锻：从零写一个能跑的 GRPO",
        "chapters": [{"file": "chapters/L2/2-reward"}],
    }
    assert len(parts) == 2


def test_toc_file_is_up_to_date():
    written = (find_root() / "_toc.yml").read_text("utf8")
    assert written == toc(COURSE), "run `python -m rrlforge.course --write`"


def test_every_file_in_chapters_is_a_lesson():
    root = find_root()
    named = {chapter_path(lesson) for lesson in COURSE.lessons}
    assert {p for p in (root / "chapters").rglob("*.md") if ".ipynb_checkpoints" not in p.parts} <= named


def test_write_leaves_no_half_written_file(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    monkeypatch.setattr(course_module, "find_root", lambda: tmp_path)
    monkeypatch.setattr(course_module, "load_course", lambda: COURSE)
    course_module.main(["--write"])
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["_toc.yml"]
    assert (tmp_path / "_toc.yml").read_text("utf8") == toc(COURSE, tmp_path)


# ---- length
CHARACTERS_A_MINUTE = 300
SLACK = 1.15


def characters(path):
    """What a reader reads of a lesson: all that stands behind the front matter (text, formulas, code, exercises),
    white space not counted. Outputs and the library's source that a cell shows are not in the file.
    """
    return len(re.sub(r"\s", "", path.read_text("utf8").split("\n---\n", 1)[1]))


@pytest.mark.parametrize("lesson", [x for x in COURSE.lessons if chapter_path(x)], ids=lambda x: x.id)
def test_lesson_is_read_in_its_minutes(lesson):
    count, most = characters(chapter_path(lesson)), CHARACTERS_A_MINUTE * lesson.minutes
    assert count <= SLACK * most, f"{count} characters in {lesson.minutes} minutes; {most} are read in that time"


def test_lessons_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        COURSE.lesson("L0-1").minutes = 1
