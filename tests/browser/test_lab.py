"""The same cells in JupyterLab, as `make lab` starts it: a lesson's .md is a notebook and its quiz works."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.error import URLError

import pytest
from conftest import ROOT

pytestmark = pytest.mark.browser

IDLE = "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
LESSON = r"""---
jupytext: {text_representation: {extension: .md, format_name: myst, format_version: 0.13}}
kernelspec: {name: python3, display_name: Python 3, language: python}
---

# 写 rollout

```{code-cell} ipython3
import rrlforge.notebook as n
n.show_source("rrlforge.notebook:inline")
```

```{code-cell} ipython3
why = {"why": "理由"}
n.load_quiz = lambda lesson: [dict(id="one", kind="single", question=r"\(x^2\) 对吗？", answers=[
    dict(text="对的", right=True, **why), dict(text="不对", **why)])]
n.quiz("L2-1")
```
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab over one lesson."""
    (tmp_path / "1-rollout.md").write_text(LESSON, "utf8")
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", f"--ServerApp.root_dir={tmp_path}"]
    command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    env = os.environ | {
        "JUPYTER_CONFIG_PATH": str(ROOT / "book" / "jupyter"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / ".settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / ".workspaces"),
    }
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{address}/api")
            break
        except URLError:
            time.sleep(0.5)
    yield address
    server.terminate()
    server.wait(20)


def test_lesson_opens_as_a_notebook_and_its_cells_work(lab, reader):
    page = reader(viewport={"width": 1360, "height": 1000}).page
    page.goto(f"{lab}/lab/tree/1-rollout.md?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=60_000)
    page.wait_for_function(IDLE, timeout=60_000)
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    form = page.locator("form.rf-question")
    form.wait_for(timeout=60_000)
    form.scroll_into_view_if_needed()
    assert "def inline" in page.locator(".rf-source").inner_text()
    form.locator("mjx-container, .MathJax").first.wait_for(timeout=30_000)  # the question's math is typeset
    form.get_by_label("不对").check()
    form.get_by_role("button").click()
    assert "还不对" in form.locator("output").inner_text()
    form.get_by_label("对的").check()
    form.get_by_role("button").click()
    assert "回答正确" in form.locator("output").inner_text()
    assert "L2-1/one" in page.evaluate("localStorage.getItem('rrlforge-progress-v1')")
    if os.environ.get("RRLFORGE_SHOTS"):
        page.wait_for_timeout(500)
        page.screenshot(path=f"{os.environ['RRLFORGE_SHOTS']}/lab.png")
