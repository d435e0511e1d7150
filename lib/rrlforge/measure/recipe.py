"""What a record's recipe is."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """about: one line for the list that `rrlforge record` prints, with the time it takes; measure(name) returns the record."""

    about: str
    measure: Callable[[str], dict]
