"""The commands that a report prints under "What to do next" run to the end as printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adacompute.cli.main import cli
from adacompute.evaluation.scoring.savings import DECIDED, POLICY, WEIGHTED
from adacompute.options.shared import TodayOptions
from adacompute.report import commands
from adacompute.stages.import_samples import import_samples
from adacompute.stages.report import REPORT, report_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_results")]
BUILD = ["fit", "serve"]


def write_report(root: Path, **options: Any) -> dict[str, Any]:
    """Write the page of the example, and return its document."""
    for module, extra in (("matplotlib", "report"), ("starlette", "serve")):
        pytest.importorskip(module, reason=f"needs the extra {extra!r}")
    run = root / "my run"
    import_samples(Path("example"), run, grader="numeric")
    report_run(run, out=root / "page.html", policies=[], **options)
    document: dict[str, Any] = json.loads((run / REPORT).read_text())
    return document


def run_steps(document: dict[str, Any]) -> list[str]:
    """Run the commands of all steps, and return their names."""
    found = [command for _, command in commands.next_steps(document) if command]
    for command in found:
        words = shlex.split(command)[1:]
        # It would serve until it is stopped, and score for minutes.
        words += {"serve": ["--check"], "evaluate": ["--policies", "retry"]}.get(words[0], [])
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
    return [shlex.split(command)[1] for command in found]


def test_the_next_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_steps(write_report(tmp_path, budget=2.0)) == BUILD


@pytest.mark.parametrize(
    ("advice", "names"),
    [(POLICY, BUILD), (WEIGHTED, [*BUILD, "evaluate"]), (DECIDED, ["fit", "serve", "evaluate"])],
)
def test_the_commands_of_each_way_to_save_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advice: str, names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = write_report(tmp_path, today=TodayOptions("5", tolerance=0.005))
    document["today"]["advice"] = advice
    assert run_steps(document) == names
