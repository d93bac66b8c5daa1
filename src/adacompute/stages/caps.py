"""Caps: the stage that lists what was spent under the caps of a gateway, and corrects it.

It reads the store that the gateway's workers and replicas share, also while they run. It writes
only if an operator says how much was spent under a cap.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError, DataError
from adacompute.gateway.caps import DAY_S, PERIODS, find_period
from adacompute.gateway.clients import ANONYMOUS
from adacompute.gateway.config import Config, read_config
from adacompute.gateway.exchange import NO_MODEL
from adacompute.spending.accounts import ALIVE_S, OPERATOR, CapAccount, Recovery
from adacompute.spending.registers import Reading, Register
from adacompute.spending.replica import KEY_PREFIX, REPLICAS, set_cap_spent
from adacompute.spending.token_prices import NANO

AUDITS, SERVED = "audits/model=", "served/model="
"""Beginnings of the names of accounts that count samples of audits, and those of answers."""

Limits = Mapping[tuple[str, str], int]
"""Limits by the name of a cap without the period, and the kind of its period."""


def list_caps(
    path: Path, *, all_periods: bool = False, set_spent: tuple[str, float] | None = None
) -> dict[str, Any]:
    """Return the accounts of all caps of a gateway, by its configuration file.

    Accounts of periods that have ended are left out unless ``all_periods`` is set. ``set_spent``
    is the name of an account, and what was spent at least, which is written first.
    """
    config = read_config(path, {})
    file = config.account_file
    if file is not None and not file.exists():
        raise DataError(f"{file} does not exist: no gateway with this configuration has run yet")
    return asyncio.run(_list(config, all_periods=all_periods, set_spent=set_spent))


async def _list(
    config: Config, *, all_periods: bool, set_spent: tuple[str, float] | None
) -> dict[str, Any]:
    register = config.open_register()
    try:
        readings = await _read(register)
        if set_spent is not None:
            await _set_spent(register, config, readings, *set_spent)
            readings = await _read(register)
        replicas = await register.read(REPLICAS)
    finally:
        await register.close()
    limits = _limits(config)
    rows = [_describe(config, name, readings, limits) for name in readings]
    return {
        "store": _describe_store(config),
        "replicas": _describe_replicas(replicas),
        "accounts": [row for row in rows if all_periods or _is_current(row["period"])],
    }


async def _read(register: Register) -> dict[str, Reading]:
    """Return what the register holds of each account, by name."""
    keys = await register.keys(KEY_PREFIX)
    return {key.removeprefix(KEY_PREFIX): await register.read(key) for key in keys}


async def _set_spent(
    register: Register, config: Config, stored: Mapping[str, Reading], name: str, amount: float
) -> None:
    if not 0 <= amount < math.inf:
        raise ConfigError(f"what was spent must be a number of 0 or more, not {amount}")
    today = int(time.time() // DAY_S)
    known = {f"{cap}/{find_period(kind, today)[0]}" for cap, kind in _limits(config)} | {*stored}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"there is no account {name!r}; there are: {listed}")
    await set_cap_spent(register, name, math.ceil(amount * _scale(_unit(name))))


def _describe(
    config: Config, name: str, readings: Mapping[str, Reading], limits: Limits
) -> dict[str, Any]:
    """Return a row of the list; amounts are in the unit of the account."""
    cap, _, period = name.rpartition("/")
    account, unit = _parse(readings[name]), _unit(name)
    limit = limits.get((cap, _kind(period)))
    if name.startswith(AUDITS):
        limit = _audit_limit(config, name, readings)
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
        **_describe_status(account, readings[name]),
    }


def _describe_status(account: CapAccount, reading: Reading) -> dict[str, Any]:
    """Say whether leases are granted, or which replicas are waited for."""
    if account.recovery is None and account.server == reading.server:
        return {"status": "complete", "waiting_for": []}
    if account.recovery is None or account.recovery.server != reading.server:
        account = replace(account, recovery=_recovery_now(reading))
    return {"status": "recovering", "waiting_for": sorted(account.missing)}


def _recovery_now(reading: Reading) -> Recovery:
    """Return the recovery that the next message of a replica begins."""
    return Recovery(reading.now, reading.server, lost_at=reading.now)


def _describe_replicas(reading: Reading) -> dict[str, Any]:
    """Say how many replicas run, and whether all of them confirmed the store."""
    account = _parse(reading)
    seen_at = {name: one.seen_at for name, one in account.entries.items() if name != OPERATOR}
    n_alive = sum(at >= reading.now - ALIVE_S for at in seen_at.values())
    return {"running": n_alive, **_describe_status(account, reading)}


def _describe_store(config: Config) -> str:
    """Return the file, or the address without its password."""
    file = config.account_file
    if file is not None:
        return str(file)
    return urlsplit(config.account_store or "").netloc.rpartition("@")[2]


def _limits(config: Config) -> Limits:
    """Return the limits of all caps that the configuration sets."""
    clients, models = [*config.client_keys, ANONYMOUS], [*config.models, NO_MODEL]
    found = {}
    for cap, client, model in product(config.caps, clients, models):
        counter = cap.counter(client, model, time.time())
        if counter is not None:
            found[counter.name.rpartition("/")[0], cap.period] = counter.limit
    return found


def _audit_limit(config: Config, name: str, readings: Mapping[str, Reading]) -> int | None:
    """Return how many samples audits may draw by now: a share of those that were served."""
    model = config.models.get(name.removeprefix(AUDITS).rsplit("/", 2)[0])
    served = readings.get(name.replace(AUDITS, SERVED, 1))
    if model is None or served is None:
        return None
    return int(model.audit_max_share * _parse(served).spent)


def _parse(reading: Reading) -> CapAccount:
    return CapAccount() if reading.value is None else CapAccount.from_json(reading.value)


def _unit(name: str) -> str:
    """Return the unit of an account.

    >>> _unit("client=alice/money/2026-11")
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
