"""Signals: the names and values of what a caller gives of a sample, to tell if it is correct.

They are a ``score``, larger where a scorer or verifier prefers the sample, and numbers of any
meaning that are named ``signal_…``. What a server reports has names elsewhere.
"""

from __future__ import annotations

import re

import numpy as np

SCORE, PREFIX = "score", "signal_"

MAX_GIVEN = 32
"""Columns named ``signal_…`` that a file may have."""

MAX_VALUE = 1e30
"""Signals are not larger in absolute value; their squares are then finite."""

_NAME = re.compile(PREFIX + r"\w{1,40}", re.ASCII)


def is_given(name: object) -> bool:
    """Whether a signal of this name comes from the caller.

    >>> is_given("signal_tests_passed"), is_given("signal_two words"), is_given("mean_logprob")
    (True, False, False)
    """
    return isinstance(name, str) and (name == SCORE or _NAME.fullmatch(name) is not None)


def is_value(value: object) -> bool:
    """Whether a value may be that of a signal: a finite number, or NaN, which is unknown."""
    if not isinstance(value, int | float | np.integer | np.floating):
        return False
    return not (value > MAX_VALUE or value < -MAX_VALUE)
