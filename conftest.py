"""nbval on the lessons: a lesson's .md is the notebook, the last build holds its reference outputs.

`pytest --nbval chapters` runs each cell in the lesson's own folder and compares what it prints with the page
that a reader sees.
"""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbFile

ROOT = Path(__file__).parent


def execute_as_the_build_does(self, cell_input, allow_stdin=None):
    """nbval keeps no history, and then IPython shows a value although its line ends in a semicolon."""
    return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


RunningKernel.execute_cell_input = execute_as_the_build_does


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


class Lesson(IPyNbFile):
    def collect(self):
        notebook = jupytext.read(self.path)
        built = ROOT / "_build" / "jupyter_execute" / self.path.relative_to(ROOT).with_suffix(".ipynb")
        if not built.is_file():
            raise pytest.UsageError(
                f"{built} is absent: run `make book` first, its outputs are the reference"
            )
        reference = nbformat.read(built, 4)
        if [c.source for c in code_cells(notebook)] != [c.source for c in code_cells(reference)]:
            raise pytest.UsageError(f"{self.path} is newer than its build: run `make book` first")
        for cell, done in zip(code_cells(notebook), code_cells(reference)):
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
        real, nbformat.read = nbformat.read, lambda *args, **kwargs: notebook
        try:
            yield from super().collect()
        finally:
            nbformat.read = real


def pytest_collect_file(file_path, parent):
    wanted = parent.config.getoption("--nbval", False) or parent.config.getoption("--nbval-lax", False)
    if wanted and file_path.suffix == ".md" and "{code-cell}" in file_path.read_text("utf8"):
        return Lesson.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config, items):
    """Tests marked gpu are skipped, with the reason, where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
