"""Options come from the command line or from a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Execute = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]


CONFIG = """
[solve]
budget = 1.5
levels = [1, 2]
json = true

[evaluate]
budgets = 1.5
levels = "1,2"
policies = ["mixture", "fixed"]
drop-unparsed = true
"""


def test_command_line_overrides_the_file(call: Call, run: Path, tmp_path: Path) -> None:
    config = tmp_path / "line.toml"
    config.write_text(CONFIG)
    solved = call("solve", run, "--config", config).document
    assert list(solved["shares"]) == ["1", "2"]
    changed = call("solve", "--levels", "1,4", run, "--config", config).document
    assert list(changed["shares"]) == ["1", "4"]
    scores = call("evaluate", run, "--config", config, "--json").document
    assert (scores["drop_unparsed"], scores["levels"]) == (True, [1, 2])
    found = [(row["policy"], row["budget"]) for row in scores["rows"]]
    assert found == [("mixture", 1.5), ("fixed", 1.5)]


def test_pairs_may_be_a_table(call: Call, tmp_path: Path) -> None:
    config, table = tmp_path / "line.toml", tmp_path / "t.csv"
    table.write_text("prompt,level,utility,cost\na,low,0.5,1\n")
    for columns in ("[solve.columns]\nquestion = 'prompt'\n", "columns = 'question=prompt'\n"):
        config.write_text(f"[solve]\nbudget = 2\n{columns}")
        assert call("solve", table, "--config", config, "--json").document["questions"] == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[solve", "cannot be read as TOML"),
        ("levels = [1, 2]", "'levels' is not a table"),
        ("[solv]\nlevels = [1]", "'solv' is not a table"),
        ("solve = 3", "'solve' is not a table"),
        ("[solve]\nrungs = [1]", "no option 'rungs'; it has budget, columns"),
        ("[solve]\nconfig = 'other.toml'", "no option 'config'"),
        ("[solve]\nas_json = true", "no option 'as_json'"),
        ("[solve]\nlevels = [1.5]", "'1.5' is not a list of whole numbers"),
        ("[solve]\nlevels = [true]", "'True' is not a list of whole numbers"),
        ("[solve]\nlevels = [[1], [2]]", "levels must be a list of values, got [[1], [2]]"),
        ("[solve]\nlevels = {a = 1}", "levels must be a list of values, got {'a': 1}"),
        ("[solve]\nunit = ['tokens', 'samples']", "unit must be one text, got ["),
        ("[solve]\njson = 'maybe'", "json must be true or false, got 'maybe'"),
        ('[solve]\nunit = "\\u0000"', "unit must be one text, got '\\x00'"),
    ],
)
def test_invalid_file_of_options_is_refused(
    call: Call, run: Path, tmp_path: Path, content: str, expected: str
) -> None:
    config = tmp_path / "line.toml"
    config.write_text(content)
    assert expected in call("solve", run, "--budget", "1", "--config", config).misused()


def test_unreadable_file_of_options_is_refused(call: Call, run: Path, tmp_path: Path) -> None:
    assert "cannot be read as TOML" in call("solve", run, "--config", "missing.toml").misused()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    found = call("solve", run, "--config", tmp_path / "bytes.toml").misused()
    assert "cannot be read as TOML" in found
    assert "directory" in call("solve", run, "--config", tmp_path).misused()
