"""Record of Qwen3's tokenizer and chat template: what they make of one question and a few short texts."""
from __future__ import annotations

from importlib import metadata

from rrlforge import records, templates
from rrlforge.measure.recipe import Recipe


def qwen3(name: str) -> dict:
    figures, series = templates.describe(templates.load_qwen3())
    origin = records.origin("", "Qwen3 tokenizer and chat template", "one arith problem, six short texts",
                            f"rrlforge record {name}")
    origin["versions"]["tokenizers"] = metadata.version("tokenizers")
    return {"figures": figures, "series": series, "origin": origin}


RECIPES: dict[str, Recipe] = {
    "templates/qwen3": Recipe("Qwen3's chat template, special tokens and token counts (seconds; RRLFORGE_QWEN3 or the hub)",
                              qwen3),
}
