"""Progress on a terminal names the step, and has a bar where it is known how far it is."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from adacompute.cli.output import progress
from adacompute.core.progress import StepProgress

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_has_a_bar_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress("Fitting") as report:
        report("folds [/bold]")
        report(StepProgress(0, 4))
        report(StepProgress(3, 4))
        report(StepProgress(1, 2))  # the next one begins
    said = terminal.getvalue()
    assert "Fitting: folds [/bold]" in said
    assert "━" in said
    assert ":" in said.rpartition("━")[2]  # minutes and seconds


def test_no_bar_is_drawn_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with progress("Fitting") as report:
        report(StepProgress(1, 4))
    assert file.getvalue() == capsys.readouterr().out == ""
