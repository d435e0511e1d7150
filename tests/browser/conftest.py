"""A headless Chromium and the built book, for the tests in this folder."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium():
    named = os.environ.get("RRLFORGE_CHROMIUM")
    return (
        named or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )


@pytest.fixture(scope="session")
def html():
    """The folder of the built book."""
    assert (HTML / "book" / "index.html").is_file(), f"{HTML} holds no book: run `make book` first"
    return HTML


@pytest.fixture(scope="session")
def browser():
    """A Chromium; absent, the tests are skipped on a reader's machine and fail in CI."""
    path = chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium on PATH: install it (apt-get install chromium) or set RRLFORGE_CHROMIUM")
        pytest.skip("no chromium on PATH; install it or set RRLFORGE_CHROMIUM to run the browser tests")
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        found.close()


class Reader:
    """One browser page that notes what must not happen: errors, and requests that leave the reader's disk."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))

    def open(self, path, query=""):
        self.page.goto(path.as_uri() + query)
        self.page.wait_for_load_state("load")
        self.page.wait_for_function(
            "!window.MathJax || !MathJax.startup || MathJax.startup.promise.then(() => true)"
        )
        return self.page

    def outside(self):
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def reader(browser):
    made = []

    def make(**options):
        made.append(Reader(browser, **options))
        return made[-1]

    yield make
    for one in made:
        one.context.close()
