"""What the READMEs point at exists, and every record of the book can be measured again."""
import re
from pathlib import Path

import pytest

from rrlforge import cli, measure, records
from rrlforge.course import find_root

ROOT = find_root()
RECORDS = sorted((ROOT / "book" / "records").rglob("*.json"))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_every_relative_link_leads_to_a_file(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text("utf8"))
    assert len(links) >= 3
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_every_command_is_one_that_the_command_line_takes(name, monkeypatch):
    lines = [line.partition("#")[0] for line in (ROOT / name).read_text("utf8").split("\n") if line.startswith("rrlforge ")]
    assert len(lines) >= 5
    for line in lines:
        cli.parse(line.partition(">")[0].split()[1:])


def test_every_record_has_a_recipe_and_its_figures():
    assert RECORDS
    for path in RECORDS:
        name = path.relative_to(ROOT / "book" / "records").with_suffix("").as_posix()
        assert name in measure.RECIPES
        record = records.load(name)
        assert record["figures"]
        if name.startswith("train/"):
            assert record["figures"]["seeds"] and all(f"reward/{s}" in record["series"] for s in record["figures"]["seeds"])


def test_tiny_reaches_its_bars_in_the_record():
    """The promise of the page: three seeds out of three, on held-out problems."""
    figures = records.load("train/tiny")["figures"]
    assert len(figures["seeds"]) == 3
    assert max(figures["sampled_before"]) < 0.45
    assert min(figures["sampled_after"]) >= 0.87 and min(figures["greedy_after"]) >= 0.93


def test_an_origin_names_no_path_of_the_machine():
    for path in RECORDS:
        assert not re.search(r"/(tmp|work|home|root)/", Path(path).read_text("utf8"))
