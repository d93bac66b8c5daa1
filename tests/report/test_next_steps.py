"""The commands that a report prints under "What to do next" run to the end as printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from adacompute.cli.main import cli
from adacompute.report import wording
from adacompute.stages.import_samples import import_samples
from adacompute.stages.report import REPORT, report_run


@pytest.mark.slow
@pytest.mark.usefixtures("shared_results")
def test_the_next_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    pytest.importorskip("sklearn", reason="needs the extra 'train'")
    pytest.importorskip("starlette", reason="needs the extra 'serve'")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "my run"
    import_samples(Path("example"), run, grader="numeric")
    report_run(run, out=tmp_path / "page.html", budget=2.0, policies=[])
    document = json.loads((run / REPORT).read_text())
    commands = [command for _, command in wording.next_steps(document) if command]
    assert [shlex.split(command)[1] for command in commands] == ["train", "calibrate", "serve"]
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "serve":
            words.append("--check")  # it would serve until it is stopped
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
