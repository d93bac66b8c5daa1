"""Spend: the stage that sums the account of a gateway's calls.

It only reads, also while the gateway runs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from adacompute.storage.calls import LOST, read_calls, sum_calls


def sum_spend(directory: Path) -> dict[str, Any]:
    """Sum the calls in a directory by client, upstream model and purpose, and what was lost."""
    lost = Counter(dict.fromkeys(LOST, 0))
    spend = sum_calls(read_calls(directory, lost))
    return {"directory": str(directory), "spend": spend, "lost": dict(lost)}
