"""What users have to know stays small: commands, options, settings and public names."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import adacompute
from scripts.count_surface import count_options, describe, list_settings

MAX_COMMANDS, MAX_OPTIONS, MAX_SETTINGS, MAX_NAMES = 8, 81, 76, 45
MAX_OF_ONE = 13
"""Options of one command."""


def test_commands_have_few_options() -> None:
    options = count_options()
    assert len({name.partition(" ")[0] for name in options}) <= MAX_COMMANDS
    assert sum(options.values()) <= MAX_OPTIONS
    assert {name: n for name, n in options.items() if n > MAX_OF_ONE} == {}


def test_there_are_few_settings() -> None:
    settings = list_settings()
    assert all(settings.values())
    assert len(set().union(*settings.values())) <= MAX_SETTINGS


def test_few_names_are_public() -> None:
    assert len(adacompute.__all__) <= MAX_NAMES


def test_the_numbers_are_printed() -> None:
    text = describe({"fit": 3, "spend": 1, "spend caps": 2}, {"gateway": {"b", "a"}})
    assert text.startswith("2 commands: fit, spend\n")
    assert "   6 options in all" in text
    assert "   2 settings of gateway: a, b" in text
