"""The names of our column are those of our code, those of TRL's column TRL's own."""
import dataclasses
import re

import pytest

from rrlforge import mapping
from rrlforge.config import GRPOConfig


def test_our_names_are_settings_or_what_forge_calls():
    from rrlforge import forge

    fields = {f.name for f in dataclasses.fields(GRPOConfig)}
    others = [row.ours for row in mapping.NAMES if row.ours not in fields]
    assert others == ["group_advantages", "engine.sync"] and hasattr(forge, "group_advantages")


def test_trl_names_and_defaults_are_those_of_the_installed_trl():
    from trl import GRPOConfig as TRL

    fields = {f.name: f.default for f in dataclasses.fields(TRL)}
    for row in mapping.NAMES:
        for name in re.findall(r"[a-z]+(?:_[a-z]+)+|beta|temperature|epsilon", row.trl):
            assert name in fields, (row.ours, name)
    assert fields["num_generations"] == 8 and fields["learning_rate"] == 1e-6 and fields["beta"] == 0
    assert fields["max_completion_length"] == 512 and fields["loss_type"] == "dapo"
    assert fields["vllm_gpu_memory_utilization"] == 0.3 and fields["epsilon"] == 0.2


def test_every_row_is_found_by_its_name_and_has_a_source_for_each_column():
    for row in mapping.NAMES:
        assert mapping.name(row.ours) is row and row.what
    assert set(mapping.SOURCES) == {"trl", "slime", "verl"}
    with pytest.raises(KeyError):
        mapping.name("no_such")
