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
[import]
run = "from-the-file"

[estimate]
levels = [1, 2]
method = "windows"
json = true

[solve]
budget = 1.5

[evaluate]
budgets = 1.5
levels = "1,2"
policies = ["mixture", "fixed"]
drop-unparsed = true
"""


def test_command_line_overrides_the_file(call: Call, run: Path, tmp_path: Path) -> None:
    config = tmp_path / "line.toml"
    config.write_text(CONFIG)
    estimated = call("research estimate", run, "--config", config).document
    assert estimated["method"] == "windows"
    assert [row["level"] for row in estimated["levels"]] == [1, 2]
    changed = call("research estimate", "--levels", "1,4", run, "--config", config).document
    assert changed["method"] == "windows"
    assert [row["level"] for row in changed["levels"]] == [1, 4]
    solved = call("research solve", run, "--config", config, "--json").document
    assert solved["cost"] <= 2.0
    scores = call("evaluate", run, "--config", config, "--json").document
    assert (scores["drop_unparsed"], scores["levels"]) == (True, [1, 2])
    found = [(row["policy"], row["budget"]) for row in scores["rows"]]
    assert found == [("mixture", 1.5), ("fixed", 1.5)]


def test_required_option_may_come_from_the_file(
    call: Call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("line.toml").write_text(CONFIG)
    assert call("research import", source, "--config", "line.toml").code == 0
    assert (tmp_path / "from-the-file" / "samples.parquet").is_file()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[estimate", "cannot be read as TOML"),
        ("levels = [1, 2]", "'levels' is not a table"),
        ("[estimat]\nlevels = [1]", "'estimat' is not a table"),
        ("estimate = 3", "'estimate' is not a table"),
        ("[estimate]\nrungs = [1]", "no option 'rungs'; it has json, levels"),
        ("[estimate]\nconfig = 'other.toml'", "no option 'config'"),
        ("[estimate]\nas_json = true", "no option 'as_json'"),
        ("[estimate]\nlevels = [1.5]", "'1.5' is not a list of whole numbers"),
        ("[estimate]\nlevels = [true]", "'True' is not a list of whole numbers"),
        ("[estimate]\nlevels = [[1], [2]]", "levels must be a list of values, got [[1], [2]]"),
        ("[estimate]\nlevels = {a = 1}", "levels must be a list of values, got {'a': 1}"),
        ("[estimate]\nmethod = 3", "'3' is not one of"),
        ("[estimate]\nmethod = ['exact', 'windows']", "method must be one text, got ["),
        ("[estimate]\nmethod = 2024-01-01", "'2024-01-01' is not one of"),
        ("[estimate]\njson = 'maybe'", "json must be true or false, got 'maybe'"),
        ('[estimate]\nmethod = "\\u0000"', "method must be one text, got '\\x00'"),
    ],
)
def test_invalid_file_of_options_is_refused(
    call: Call, run: Path, tmp_path: Path, content: str, expected: str
) -> None:
    config = tmp_path / "line.toml"
    config.write_text(content)
    assert expected in call("research estimate", run, "--config", config).misused()


def test_unreadable_file_of_options_is_refused(call: Call, run: Path, tmp_path: Path) -> None:
    assert (
        "cannot be read as TOML"
        in call("research estimate", run, "--config", "missing.toml").misused()
    )
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    found = call("research estimate", run, "--config", tmp_path / "bytes.toml").misused()
    assert "cannot be read as TOML" in found
    assert "directory" in call("research estimate", run, "--config", tmp_path).misused()
