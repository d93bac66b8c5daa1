"""The package and what users have to know do not grow: a feature takes what another one gives."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from scripts.sizes import (
    SLACK,
    count_lines,
    count_statements,
    list_options,
    measure,
    measure_folders,
    read_limits,
)

MAX_COMMANDS, MAX_OPTIONS_OF_ONE = 8, 27


def test_nothing_is_larger_than_pyproject_allows() -> None:
    limits = read_limits()
    slack = {"statements": SLACK}
    assert {
        name: count
        for name, count in measure().items()
        if count > limits[name] * slack.get(name, 1.0)
    } == {}


def test_every_folder_is_listed_and_the_sum_is_that_of_the_folders() -> None:
    limits, folders = read_limits(), measure_folders()
    assert set(limits["folders"]) == set(folders)
    assert sum(statements for statements, _ in folders.values()) == measure()["statements"]


def test_commands_have_few_options() -> None:
    options = list_options()
    assert len({name.partition(" ")[0] for name in options}) <= MAX_COMMANDS
    assert {name for name, own in options.items() if len(own) > MAX_OPTIONS_OF_ONE} == set()


def test_statements_and_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('"""A docstring."""\nif True: x = 1; y = 2\n')
    assert (count_statements(file), count_lines(tmp_path)) == (4, 2)
