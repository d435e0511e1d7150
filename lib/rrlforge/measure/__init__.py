"""How each record of the book is measured: `rrlforge record NAME` runs its recipe and writes book/records/NAME.json.

One module for each family of records (train/*, vram/*, ...); each holds a dict RECIPES.
"""
from __future__ import annotations

from rrlforge import records
from rrlforge.errors import ForgeError
from rrlforge.measure import baseline, speed, templates, toks, train, vram

RECIPES = {**train.RECIPES, **baseline.RECIPES, **speed.RECIPES, **vram.RECIPES, **toks.RECIPES, **templates.RECIPES}


def run(name: str) -> str:
    """Measure record `name` and save it; returns its path. `ForgeError` names the known records."""
    if name not in RECIPES:
        raise ForgeError(f"no recipe for record {name!r}: known are {', '.join(RECIPES)}")
    return str(records.save(name, RECIPES[name].measure(name)))
