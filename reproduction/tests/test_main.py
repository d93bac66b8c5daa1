"""The commands of the reproduction print, fail and exit as those of the package do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproduction import __main__ as commands

Call = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("own_policies")  # the commands register rivals


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reproduction", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", [(), ("reproduce",)])
def test_runs_are_compared(call: Call, run: Path, tmp_path: Path, name: tuple[str, ...]) -> None:
    arguments = (*name, run, "--out", tmp_path / "out", "--full-runs", "0")
    code, printed, said = call(*arguments)
    assert (code, said) == (0, "")
    assert "Accuracy at 2 samples per question" in printed
    code, printed, said = call(*arguments, "--json")
    assert (code, said) == (0, "")
    assert json.loads(printed)["index"] == str(tmp_path / "out" / "index.md")


def test_options_can_be_in_a_file(call: Call, run: Path, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("[reproduce]\nfull-runs = 0\n")
    options = ("--config", tmp_path / "options.toml", "--json")
    _, printed, _ = call(run, "--out", tmp_path / "out", *options)
    assert json.loads(printed)["complete"] == []


def test_policies_are_scored_by_the_papers_protocol(call: Call, run: Path) -> None:
    arguments = ("evaluate", run, "--budgets", "2.5", "--policies", "fixed,paper-heuristic")
    code, printed, said = call(*arguments)
    assert (code, said) == (0, "")
    assert "the paper's protocol" in printed
    code, printed, _ = call(*arguments, "--json")
    assert {row["policy"] for row in json.loads(printed)["rows"]} == {"fixed", "paper-heuristic"}


def test_rivals_are_scored_by_the_packages_protocol(call: Call, run: Path) -> None:
    arguments = ("rivals", run, "--budgets", "2.5", "--levels", "1,2,4")
    names = ("mixture", "bayesian-stopping", "confidence-stopping", "shortest-majority")
    code, printed, said = call(*arguments, "--policies", ",".join(names))
    assert (code, said) == (0, "")
    assert "held-out questions" in printed
    code, printed, _ = call(*arguments, "--policies", ",".join(names), "--json")
    rows = json.loads(printed)["rows"]
    assert [row["policy"] for row in rows] == [*names]
    assert len({tuple(row) for row in rows}) == 1
    code, printed, said = call(*arguments, "--policies", names[1], "--config", "max-rounds=2")
    assert (code, printed) == (2, "")
    assert "bayesian-stopping cannot be scored: it does not plan for rounds" in said


def test_failures_end_in_one_sentence(call: Call, run: Path, tmp_path: Path) -> None:
    assert call()[0] == 2
    code, printed, said = call(tmp_path / "none", "--out", tmp_path / "out")
    assert (code, printed) == (1, "")
    assert said.startswith("adacompute: ")
    assert said.count("\n") == 1
    assert call("evaluate", run, "--policies", "psychic")[0] == 2
    assert call("--help")[0] == 0


def test_scores_show_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {"policy": "fixed", "budget": 4.0, "cost": 2.0, "accuracy": 0.5}
    result = {
        "unit": "tokens",
        "drop_unparsed": True,
        "questions": 20,
        "subsample_of": 3000,
        "entropy_estimate": "left out",
        "unparsed_share": 0.125,
        "skipped": {"router": "the run has no question texts"},
        "rows": [row | {"is_over_budget": False}, row | {"budget": 1.5, "is_over_budget": True}],
    }
    commands.print_scores(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert "in tokens, the paper's protocol, unparsed samples removed" in printed
    assert "cost 2" in printed
    assert "20 questions, a subsample by hash of 3,000; accuracy" in printed
    assert "12.5 % of the samples could not be parsed. entropy_estimate: left out." in printed
    assert "Over the budget: fixed at 1.5" in printed
    assert "Not scored: router (the run has no question texts)" in printed
