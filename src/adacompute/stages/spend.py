"""Spend: the stage that sums the account of a gateway's calls.

It only reads, also while the gateway runs.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError
from adacompute.storage.calls import LOST, default_state, find_accounts, read_calls, sum_calls


def sum_spend(directory: Path | None = None) -> dict[str, Any]:
    """Sum the calls in a state directory by client, upstream model and purpose, and what was lost.

    Without one, it sums those of all gateways of this user that have no directory of their own.
    """
    lost = Counter(dict.fromkeys(LOST, 0))
    directories = find_accounts() if directory is None else [directory]
    if not directories:
        raise DataError(
            f"no gateway has recorded calls in {default_state('')}: give the state_directory of "
            "one, or set XDG_STATE_HOME as for the gateway"
        )
    calls = chain.from_iterable(read_calls(one, lost) for one in directories)
    spend = sum_calls(calls)
    return {"directories": list(map(str, directories)), "spend": spend, "lost": dict(lost)}
