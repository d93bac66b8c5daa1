"""Progress: what `calibrate` and `evaluate` are doing, for the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

from adacompute.core.errors import ConfigError
from adacompute.core.progress import StepProgress

Progress: TypeAlias = Callable[[str], None] | bool | None
"""A function that is called with the name of each step, or whether to print the steps."""


def read_progress(progress: Progress) -> Callable[[str], None]:
    """Return the function to report steps to."""
    if progress is None or progress is False:
        return lambda _: None
    if progress is True:
        return lambda step: print(f"adacompute: {step}", file=sys.stderr, flush=True)  # noqa: T201
    if not callable(progress):
        raise ConfigError(f"progress must be True or a function, not {type(progress).__name__}")
    report = progress
    return lambda step: None if isinstance(step, StepProgress) else report(step)
