"""The course as data: stages, lessons and routes from book/course.yaml.

Whatever names a lesson (table of contents, index, routes, page headers) derives from here.
`python -m rrlforge.course --write` writes _toc.yml from it.
"""

import argparse
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from .errors import ForgeError
from .files import write_atomically

KINDS = ("原理", "动手", "闯关")
LESSON_COUNT = 27
TOTAL_MINUTES = 1035


@dataclass(frozen=True)
class Lesson:
    """One lesson: `id` like "L2-1", `minutes` to read and do it, `kind` one of KINDS, `title` in Chinese."""

    id: str
    minutes: int
    kind: str
    title: str

    @property
    def stage(self):
        return self.id.split("-")[0]

    @property
    def number(self):
        return int(self.id.split("-")[1])


@dataclass(frozen=True)
class Stage:
    id: str
    name: str
    topic: str
    lessons: tuple[Lesson, ...]


@dataclass(frozen=True)
class Route:
    id: str
    name: str
    audience: str
    lessons: tuple[Lesson, ...]

    @property
    def minutes(self):
        return sum(lesson.minutes for lesson in self.lessons)


@dataclass(frozen=True)
class Course:
    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]

    @property
    def lessons(self):
        return tuple(lesson for stage in self.stages for lesson in stage.lessons)

    def lesson(self, lesson_id):
        """The Lesson named `lesson_id`; ForgeError if there is none."""
        return _pick(self.lessons, lesson_id, "lesson")

    def stage(self, stage_id):
        """The Stage named `stage_id`; ForgeError if there is none."""
        return _pick(self.stages, stage_id, "stage")

    def route(self, route_id="full"):
        """The Route named `route_id`; ForgeError if there is none."""
        return _pick(self.routes, route_id, "route")

    def next(self, lesson_id, route_id="full"):
        """The lesson after `lesson_id` in a route, or None at its end."""
        return self._neighbour(lesson_id, route_id, +1)

    def previous(self, lesson_id, route_id="full"):
        """The lesson before `lesson_id` in a route, or None at its start."""
        return self._neighbour(lesson_id, route_id, -1)

    def _neighbour(self, lesson_id, route_id, step):
        lessons = self.route(route_id).lessons
        here = lessons.index(_pick(lessons, lesson_id, f"lesson on route {route_id}"))
        return lessons[here + step] if 0 <= here + step < len(lessons) else None


def find_root():
    """The repository's folder: above this file (editable install), else above the working directory."""
    for folder in (*Path(__file__).resolve().parents, *Path.cwd().resolve().parents, Path.cwd()):
        if (folder / "book" / "course.yaml").is_file():
            return folder
    raise ForgeError(f"no book/course.yaml above {Path.cwd()}: run inside the book's repository")


@lru_cache
def load_course(path=None):
    """Read and validate a course file, book/course.yaml by default; ForgeError says what is wrong there."""
    path = Path(path) if path else find_root() / "book" / "course.yaml"
    try:
        data = yaml.safe_load(path.read_text("utf8"))
        lessons = [Lesson(d["id"], d["minutes"], d["kind"], d["title"]) for d in data["lessons"]]
        stages = tuple(
            Stage(d["id"], d["name"], d["topic"], tuple(x for x in lessons if x.stage == d["id"]))
            for d in data["stages"]
        )
        check_lessons(lessons, stages, path)
        routes = tuple(
            Route(d["id"], d["name"], d["for"], _route_lessons(d, lessons)) for d in data["routes"]
        )
    except OSError as error:
        raise ForgeError(f"{path}: cannot be read ({error.strerror}); restore it from git") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ForgeError(f"{path}: not a course file ({' '.join(str(error).split())})") from error
    check_routes(routes, path)
    return Course(stages, routes)


def check_lessons(lessons, stages, where):
    """Check the lessons against what the book promises; the first fault raises a ForgeError that names it."""
    for lesson in lessons:
        if not re.fullmatch(r"L\d-\d", lesson.id):
            raise ForgeError(f"{where}: lesson id {lesson.id!r} must look like L2-1")
        if lesson.kind not in KINDS:
            raise ForgeError(f"{where}: {lesson.id} has kind {lesson.kind!r}; use one of {'、'.join(KINDS)}")
        if not isinstance(lesson.minutes, int) or lesson.minutes <= 0:
            raise ForgeError(f"{where}: {lesson.id} has minutes {lesson.minutes!r}; use a positive integer")
    ids = [lesson.id for lesson in lessons]
    if ids != [lesson.id for stage in stages for lesson in stage.lessons]:
        raise ForgeError(f"{where}: lessons must be grouped by stage, each in a stage that is listed")
    if len(set(ids)) != LESSON_COUNT or len(ids) != LESSON_COUNT:
        raise ForgeError(
            f"{where}: {len(ids)} lessons, {len(set(ids))} different; the book has {LESSON_COUNT}"
        )
    if (total := sum(lesson.minutes for lesson in lessons)) != TOTAL_MINUTES:
        raise ForgeError(f"{where}: the minutes sum to {total}; the book has {TOTAL_MINUTES}")
    for stage in stages:
        if [x.number for x in stage.lessons] != list(range(1, len(stage.lessons) + 1)):
            raise ForgeError(f"{where}: lessons of {stage.id} must be numbered 1, 2, 3 in order")


def check_routes(routes, where):
    """Check that no route names a lesson twice and that the full route is there."""
    for route in routes:
        if len(set(route.lessons)) != len(route.lessons):
            raise ForgeError(f"{where}: route {route.id} names a lesson twice")
    _pick(routes, "full", f"route in {where}")


def chapter_path(lesson, root=None):
    """The lesson's file under chapters/ (chapters/L2/1-*.md), or None while it is not written."""
    root = Path(root or find_root())
    found = sorted((root / "chapters" / lesson.stage).glob(f"{lesson.number}-*.md"))
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise ForgeError(f"chapters/{lesson.stage}: {names} all claim lesson {lesson.id}; keep one")
    return found[0] if found else None


def chapter_doc(lesson, root=None):
    """The lesson's Sphinx document name ("chapters/L2/1-rollout"), or None while it is not written."""
    root = Path(root or find_root())
    path = chapter_path(lesson, root)
    return path.relative_to(root).with_suffix("").as_posix() if path else None


def lesson_of(doc):
    """The lesson id of a document name: "chapters/L2/1-rollout" -> "L2-1"; ForgeError for another page."""
    match = re.fullmatch(r"chapters/(L\d)/(\d)-[^/]+", doc)
    if not match:
        raise ForgeError(f"{doc}: no lesson; a lesson's file is chapters/<stage>/<number>-<name>.md")
    return f"{match[1]}-{match[2]}"


def toc(course, root=None):
    """The text of _toc.yml: the lessons that are written, by stage."""
    parts = []
    for stage in course.stages:
        chapters = [{"file": doc} for x in stage.lessons if (doc := chapter_doc(x, root))]
        if chapters:
            parts.append({"caption": f"{stage.id} {stage.name}：{stage.topic}", "chapters": chapters})
    parts.append({"caption": "附录", "chapters": [{"file": "book/glossary"}]})
    data = {"format": "jb-book", "root": "book/index", "parts": parts}
    head = "# Written by `python -m rrlforge.course --write` from book/course.yaml and the chapters.\n"
    return head + yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=110)


def _pick(items, item_id, what):
    for item in items:
        if item.id == item_id:
            return item
    raise ForgeError(f"no {what} {item_id!r}; there are {', '.join(item.id for item in items)}")


def _route_lessons(data, lessons):
    if data["lessons"] == "all":
        return tuple(lessons)
    return tuple(_pick(lessons, x, f"lesson (route {data['id']})") for x in data["lessons"])


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m rrlforge.course", description="Derive _toc.yml.")
    parser.add_argument("--write", action="store_true", help="write _toc.yml; without it, print it")
    args = parser.parse_args(argv)
    root = find_root()
    text = toc(load_course(), root)
    if not args.write:
        print(text, end="")
        return
    target = root / "_toc.yml"
    if target.is_file() and target.read_text("utf8") == text:
        return
    write_atomically(target, text)


if __name__ == "__main__":
    main()
