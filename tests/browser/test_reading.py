"""The built book as a reader opens it: from file://, with a mouse, a keyboard and a phone."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from conftest import ROOT

from rrlforge.course import chapter_doc, load_course

pytestmark = pytest.mark.browser
WRITTEN = [x for x in load_course().lessons if chapter_doc(x, ROOT)]
PAGES = ["book/index", "book/glossary", "search", *(chapter_doc(x, ROOT) for x in WRITTEN)]
QUIZZED = [x for x in WRITTEN if (ROOT / "book" / "quizzes" / f"{x.id}.yaml").is_file()]
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 2,
}


@pytest.mark.parametrize("page", PAGES)
def test_page_opens_from_disk_without_errors_or_network(page, html, reader):
    one = reader()
    one.open(html / f"{page}.html")
    one.page.wait_for_timeout(400)
    assert one.errors == []
    assert one.outside() == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(page, scheme, html, reader):
    shown = reader(color_scheme=scheme, **PHONE).open(html / f"{page}.html")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("page", PAGES)
def test_dark_page_shows_light_text_on_dark(page, html, reader):
    shown = reader(color_scheme="dark").open(html / f"{page}.html")
    faint = shown.evaluate(CONTRAST)
    assert faint == [], f"text under 3:1 contrast: {faint}"


CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf8")


def results(page):
    """The results of a search, all of them: the page lists them one after the other."""
    page.wait_for_function("document.querySelector('#search-results p.search-summary')?.innerText.match(/[0-9]/)")
    page.wait_for_selector("#search-results ul.search > li .context", timeout=10_000)
    return page.eval_on_selector_all("#search-results ul.search > li", "all => all.map(x => x.innerText)")


@pytest.mark.parametrize("query", ["显存账本", "术语", "clip"])
def test_search_finds_and_shows_where(query, html, reader):
    one = reader()
    found = results(one.open(html / "search.html", f"?q={quote(query)}"))
    assert any(query in text for text in found), found
    assert one.errors == [] and one.outside() == []


def marked(page, selector):
    return page.eval_on_selector_all(selector, "all => all.map(x => x.textContent.toLowerCase())")


@pytest.mark.parametrize(
    "query, hits", [("显存账本", {"显存账本"}), ("KL 散度", {"kl", "散度"})]
)
def test_a_hit_is_marked_as_the_phrase_in_the_results_and_on_its_page(query, hits, html, reader):
    one = reader()
    page = one.open(html / "search.html", f"?q={quote(query)}")
    results(page)
    assert set(marked(page, "#search-results mark")) <= hits
    page.locator("#search-results a[href*='book/glossary.html']").first.click()
    page.wait_for_selector("span.highlighted", timeout=10_000)
    assert set(marked(page, "span.highlighted")) == hits
    assert one.errors == [] and one.outside() == []


@pytest.mark.skipif(not WRITTEN, reason="no lesson is written yet")
@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_search_finds_a_lesson_by_its_title(lesson, html, reader):
    phrase = max(re.findall(r"[\u4e00-\u9fff]{2,}", lesson.title), key=len)
    page = reader().open(html / "search.html", f"?q={quote(phrase)}")
    results(page)
    links = page.eval_on_selector_all("#search-results a", "all => all.map(x => x.getAttribute('href'))")
    assert any(chapter_doc(lesson, ROOT) in link for link in links), links


def test_search_for_an_identifier_finds_the_lesson_that_uses_it(html, reader):
    users = [
        x for x in WRITTEN if "group_advantages" in (ROOT / f"{chapter_doc(x, ROOT)}.md").read_text("utf8")
    ]
    if not users:
        pytest.skip("no written lesson uses group_advantages yet")
    page = reader().open(html / "search.html", "?q=group_advantages")
    assert any("group_advantages" in text for text in results(page))


def test_search_for_nothing_in_the_book_says_so(html, reader):
    page = reader().open(html / "search.html", f"?q={quote('龘靐齉')}")
    page.wait_for_timeout(800)
    assert page.locator("#search-results ul.search > li").count() == 0


def questions(lesson):
    return yaml.safe_load((ROOT / "book" / "quizzes" / f"{lesson.id}.yaml").read_text("utf8"))


def answer(form, question, right=True):
    """Tick or fill a form: rightly, or wrongly in one place."""
    if question["kind"] == "numeric":
        form.locator("input").fill(str(question["value"] + (0 if right else 1 + 2 * question["tolerance"])))
        return
    for box, one in zip(form.locator("input").all(), question["answers"]):
        wanted = one.get("right", False) is True
        if question["kind"] == "multiple":
            box.set_checked(wanted if right else True)
        elif wanted == right:
            box.check()


@pytest.mark.parametrize("lesson", QUIZZED, ids=lambda x: x.id)
def test_every_question_judges_explains_and_is_remembered(lesson, html, reader):
    page = reader().open(html / f"{chapter_doc(lesson, ROOT)}.html")
    for question in questions(lesson):
        form = page.locator(f"form[data-id='{lesson.id}/{question['id']}']")
        form.get_by_role("button").click()
        assert "请先" in form.locator("output").inner_text()
        wrong_exists = question["kind"] == "numeric" or not all(a.get("right") for a in question["answers"])
        if wrong_exists:
            answer(form, question, right=False)
            form.get_by_role("button").click()
            assert "还不对" in form.locator("output").inner_text()
        answer(form, question)
        form.get_by_role("button").click()
        assert "回答正确" in form.locator("output").inner_text()
        hidden = form.locator(".rf-why").evaluate_all("all => all.filter(x => x.hidden).length")
        assert hidden == 0, "after a right answer every explanation is shown"
    page.reload()
    stored = json.loads(page.evaluate("localStorage.getItem('rrlforge-progress-v1')"))
    assert stored[lesson.id]["passed"]
    assert page.locator("form.rf-question output").first.inner_text() == "✓ 以前答对过"


@pytest.mark.parametrize("lesson", QUIZZED[:1], ids=lambda x: x.id)
def test_quiz_by_keyboard_alone(lesson, html, reader):
    page = reader().open(html / f"{chapter_doc(lesson, ROOT)}.html")
    question = next(q for q in questions(lesson) if q["kind"] == "multiple")
    form = page.locator(f"form[data-id='{lesson.id}/{question['id']}']")
    form.locator("input").first.focus()
    for one in question["answers"]:
        if one.get("right"):
            page.keyboard.press("Space")
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the focus stands on the button now
    assert "回答正确" in form.locator("output").inner_text()


@pytest.mark.parametrize("lesson", QUIZZED[:1], ids=lambda x: x.id)
def test_index_counts_a_lesson_once_its_quiz_is_passed(lesson, html, reader):
    one = reader()
    page = one.open(html / f"{chapter_doc(lesson, ROOT)}.html")
    for question in questions(lesson):
        form = page.locator(f"form[data-id='{lesson.id}/{question['id']}']")
        answer(form, question)
        form.get_by_role("button").click()
    page = one.open(html / "book" / "index.html")
    assert "已完成 1/27" in page.locator(".rf-count").all_inner_texts()


@pytest.mark.parametrize("lesson", QUIZZED[:1], ids=lambda x: x.id)
def test_quiz_is_a_labelled_form(lesson, html, reader):
    page = reader().open(html / f"{chapter_doc(lesson, ROOT)}.html")
    assert page.locator("form.rf-question fieldset > legend").count() == len(questions(lesson))
    unlabelled = page.eval_on_selector_all(
        "form.rf-question input", "all => all.filter(x => !x.labels.length).length"
    )
    assert unlabelled == 0


@pytest.mark.parametrize("lesson", WRITTEN, ids=lambda x: x.id)
def test_math_is_typeset_everywhere(lesson, html, reader):
    page = reader().open(html / f"{chapter_doc(lesson, ROOT)}.html")
    left = page.evaluate(r"""() => [...document.querySelectorAll('article')].flatMap(a => {
        const copy = a.cloneNode(true);
        copy.querySelectorAll('pre, code, mjx-container, table.dataframe').forEach(x => x.remove());
        return copy.textContent.match(/\\\(|\\\[|\\frac|\\hat/g) || []; })""")
    bad = page.locator("mjx-container [data-mml-node='merror']").count()
    assert left == [] and bad == 0
