"""Spend: the stage that sums the account of a gateway's calls.

It only reads, also while the gateway runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adacompute.storage.calls import read_calls, sum_calls


def sum_spend(directory: Path) -> dict[str, Any]:
    """Sum the calls in a directory by client, upstream model and purpose."""
    return {"directory": str(directory), "spend": sum_calls(read_calls(directory))}
