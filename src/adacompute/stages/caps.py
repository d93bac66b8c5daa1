"""Caps: the stage that lists what was spent under the caps of a gateway, and corrects it.

It reads the store that the gateway's workers and replicas share, also while they run. It writes
only if an operator says how much was spent under a cap.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError, DataError
from adacompute.gateway.accounting.caps import DAY_S, PERIODS, find_period
from adacompute.gateway.connection.exchange import NO_MODEL
from adacompute.gateway.settings.config import Config, read_config
from adacompute.options.definition import takes
from adacompute.options.main import CapsOptions
from adacompute.spending.caps.accounts import OPERATOR, CapAccount
from adacompute.spending.caps.peers import RECOVERY_S, Peers
from adacompute.spending.caps.replica import set_cap_spent
from adacompute.spending.token_prices import NANO

Accounts = Mapping[str, CapAccount]
"""Accounts by the name of their counter."""

Limits = Mapping[tuple[str, str], int]
"""Limits by the name of a cap without the period, and the kind of its period."""


@takes(CapsOptions)
def list_caps(path: Path, options: CapsOptions) -> dict[str, Any]:
    """Return the accounts of all caps of a gateway, by its configuration file.

    Accounts of periods that have ended are left out unless ``all_periods`` is set. ``set_spent``
    gives what was spent at least under names of accounts, which is written first.
    """
    config = read_config(path, {})
    file = config.account_file
    if file is not None and not file.exists():
        raise DataError(f"{file} does not exist: no gateway with this configuration has run yet")
    return asyncio.run(_list(config, options))


async def _list(config: Config, options: CapsOptions) -> dict[str, Any]:
    register = config.open_register()
    try:
        peers = Peers(register, "", recovery_s=RECOVERY_S)
        await peers.read()
        spent = {
            name: _check_spent(config, peers.accounts, name, amount)
            for name, amount in (options.set_spent or {}).items()
        }
        for name, amount in spent.items():
            await set_cap_spent(register, name, amount)
        await peers.read()
    finally:
        await register.close()
    limits, accounts = _limits(config), peers.accounts
    rows = [_describe(name, accounts, limits) for name in sorted(accounts)]
    return {
        "store": _describe_store(config),
        "replicas": {
            "running": len(peers.others),
            "status": "recovering" if peers.is_recovering else "complete",
            "waiting_for": sorted(peers.waits_for),
        },
        "accounts": [row for row in rows if options.all_periods or _is_current(row["period"])],
    }


def _check_spent(config: Config, stored: Accounts, name: str, amount: float) -> int:
    """Return an amount as the meter counts it; ConfigError if it or the account makes no sense."""
    if not 0 <= amount < math.inf:
        raise ConfigError(f"what was spent must be a number of 0 or more, not {amount}")
    today = int(time.time() // DAY_S)
    known = {f"{cap}/{find_period(kind, today)[0]}" for cap, kind in _limits(config)} | {*stored}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"there is no account {name!r}; there are: {listed}")
    return math.ceil(amount * _scale(_unit(name)))


def _describe(name: str, accounts: Accounts, limits: Limits) -> dict[str, Any]:
    """Return a row of the list; amounts are in the unit of the account."""
    cap, _, period = name.rpartition("/")
    account, unit = accounts[name], _unit(name)
    limit = limits.get((cap, _kind(period)))
    scale = _scale(unit)
    return {
        "name": name,
        "cap": cap,
        "period": period,
        "unit": unit,
        "limit": None if limit is None else limit / scale,
        "spent": account.spent / scale,
        "held": account.held / scale,
        "replicas": len(account.entries.keys() - {OPERATOR}),
    }


def _describe_store(config: Config) -> str:
    """Return the file, or the address without its password."""
    file = config.account_file
    if file is not None:
        return str(file)
    return urlsplit(config.account_store or "").netloc.rpartition("@")[2]


def _limits(config: Config) -> Limits:
    """Return the limits of all caps that the configuration sets."""
    found = {}
    for cap, model in product(config.caps, [*config.models, NO_MODEL]):
        counter = cap.counter(model, time.time())
        if counter is not None:
            found[counter.name.rpartition("/")[0], cap.period] = counter.limit
    return found


def _unit(name: str) -> str:
    """Return the unit of an account.

    >>> _unit("total/money/2026-11")
    'money'
    """
    return name.rpartition("/")[0].rpartition("/")[2]


def _scale(unit: str) -> int:
    return NANO if unit == "money" else 1


def _kind(period: str) -> str:
    """Return the kind of a period.

    >>> _kind("2026-11-16"), _kind("2026-11"), _kind("all")
    ('day', 'month', 'all')
    """
    return {10: "day", 7: "month"}.get(len(period), "all")


def _is_current(period: str) -> bool:
    today = int(time.time() // DAY_S)
    return period in {find_period(kind, today)[0] for kind in PERIODS}
