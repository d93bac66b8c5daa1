"""Progress: what long steps report to the same function as the names of steps."""

from __future__ import annotations

from adacompute.core.progress import StepProgress, no_progress


def test_progress_is_a_text_with_its_numbers() -> None:
    progress = StepProgress(3, 30)
    assert (progress, progress.done, progress.total) == ("3 of 30", 3, 30)
    no_progress(progress)
