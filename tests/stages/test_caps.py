"""The list of caps says what was spent and what is waited for, and an operator can correct it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.gateway.accounting.caps import find_period
from adacompute.spending.caps.accounts import CapAccount, Entry
from adacompute.spending.caps.counters import Charge, Counter
from adacompute.spending.caps.meter import CapReached, Meter
from adacompute.spending.caps.peers import CAPS, RECOVERY, REPLICAS, Presence, Recovery
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.registers import update
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.spending.token_prices import NANO
from adacompute.stages.caps import list_caps
from test_support.redis_server import find_redis, serve_redis

CONFIG = """
[serve]
base_url = "http://127.0.0.1:9/v1"
{store}
max_output_tokens = 100
token_prices = "prices.toml"

[serve.models.virtual]
bundle = "example"
budget = 2.0

[[serve.caps]]
amount = 20
unit = "money"

[[serve.caps]]
amount = 500
unit = "tokens"
period = "month"
model = "virtual"
"""
DAY, MONTH = (find_period(kind, int(time.time() // 86_400))[0] for kind in ("day", "month"))
MONEY, TOKENS = f"total/money/{DAY}", f"total/model=virtual/tokens/{MONTH}"


def write_config(folder: Path, store: str = 'state_directory = "."') -> Path:
    path = folder / "gateway.toml"
    path.write_text(CONFIG.format(store=store))
    return path


def write_values(folder: Path, values: dict[str, str]) -> None:
    async def write() -> None:
        register = SqliteRegister(folder / "accounts.sqlite")
        for key, text in values.items():
            await update(register, key, lambda _, text=text: (text, None))  # type: ignore[misc]
        await register.close()

    asyncio.run(write())


def account(**entries: Entry) -> str:
    return CapAccount(entries).to_json()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    now = time.time()
    accounts = {
        MONEY: account(
            a=Entry(5 * NANO, NANO, 2 * NANO), b=Entry(3 * NANO, 0, 0), operator=Entry(1, 0, 1)
        ),
        TOKENS: account(a=Entry(100, 20, 60)),
        "total/money/2020-02-29": account(a=Entry(7 * NANO, 0, 7 * NANO)),
        "total/samples/all": account(a=Entry(4, 0, 3)),
    }
    replicas = {
        "a": Presence(now, "s", has_left=False),
        "b": Presence(now - 3600, "s", has_left=False),
        "c": Presence(now, "s", has_left=True),
    }
    recovery = Recovery("s", now, False, 0.0, True, {})
    write_values(
        tmp_path,
        {
            **{CAPS + name: text for name, text in accounts.items()},
            **{REPLICAS + name: json.dumps(one) for name, one in replicas.items()},
            RECOVERY: json.dumps(recovery),
            "pacing/virtual/samples": "of no cap",
        },
    )
    return write_config(tmp_path)


def test_accounts_are_listed_in_their_unit(config: Path) -> None:
    found = list_caps(config)
    assert found["store"] == str(config.with_name("accounts.sqlite"))
    assert found["replicas"] == {"running": 1, "status": "complete", "waiting_for": []}
    rows = {row["name"]: row for row in found["accounts"]}
    assert rows[MONEY] == {
        "name": MONEY,
        "cap": "total/money",
        "period": DAY,
        "unit": "money",
        "limit": 20.0,
        "spent": pytest.approx(2.0),
        "held": pytest.approx(7.0),
        "replicas": 2,
    }
    values = {name: (row["limit"], row["spent"], row["held"]) for name, row in rows.items()}
    assert values[TOKENS] == (500, 60, 80)
    assert values["total/samples/all"][0] is None  # no such cap is configured
    assert len(rows) == 3


def test_periods_that_have_ended_are_listed_on_request(config: Path) -> None:
    rows = {row["name"]: row for row in list_caps(config, all_periods=True)["accounts"]}
    assert len(rows) == 4
    assert rows["total/money/2020-02-29"]["limit"] == 20


def test_an_operator_can_only_raise_what_was_spent(config: Path) -> None:
    for amount, spent, held in ((1.0, 2.0, 7.0), (9.5, 9.5, 14.5), (8.0, 9.5, 14.5)):
        rows = list_caps(config, set_spent={MONEY: amount})["accounts"]
        (row,) = (row for row in rows if row["name"] == MONEY)
        assert (row["spent"], row["held"]) == (pytest.approx(spent), pytest.approx(held))


def test_an_account_that_is_lost_can_be_set(tmp_path: Path) -> None:
    write_values(tmp_path, {"pacing/virtual/samples": "of no cap"})
    found = list_caps(write_config(tmp_path), set_spent={TOKENS: 40.2})["accounts"]
    assert [(row["name"], row["spent"], row["replicas"]) for row in found] == [(TOKENS, 41, 0)]


@pytest.mark.parametrize(
    ("name", "amount", "complaint"),
    [
        ("total/money", 1.0, "there is no account 'total/money'"),
        (f"total/model=other/tokens/{MONTH}", 1.0, "total/model=virtual"),
        (MONEY, -1.0, "-1"),
        (MONEY, float("nan"), "nan"),
    ],
    ids=["no period", "no model", "negative", "no number"],
)
def test_a_wrong_name_or_amount_changes_nothing(
    config: Path, name: str, amount: float, complaint: str
) -> None:
    before = list_caps(config)
    with pytest.raises(ConfigError, match=complaint):
        list_caps(config, set_spent={name: amount})
    assert list_caps(config) == before


def test_a_gateway_that_never_ran_has_no_accounts(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        list_caps(path)
    assert [one.name for one in tmp_path.iterdir()] == ["gateway.toml"]


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_recovery_names_the_replicas_that_it_waits_for(tmp_path: Path, is_complete: bool) -> None:  # noqa: FBT001
    now = time.time()
    replicas = {
        "has reported": Presence(now, "new", has_left=False),
        "runs": Presence(now - 1, "old", has_left=False),
        "was killed": Presence(now - 70, "old", has_left=False),
        "has left": Presence(now - 1, "old", has_left=True),
        "was gone before": Presence(now - 90, "old", has_left=False),
    }
    recovery = Recovery("new", now - 20, True, now - 20, is_complete, {})
    written = {REPLICAS + name: json.dumps(one) for name, one in replicas.items()}
    write_values(tmp_path, {**written, RECOVERY: json.dumps(recovery)})
    names = [] if is_complete else ["runs", "was killed"]
    assert list_caps(write_config(tmp_path))["replicas"] == {
        "running": 2,
        "status": "complete" if is_complete else "recovering",
        "waiting_for": names,
    }


def test_what_an_operator_sets_counts_for_replicas(tmp_path: Path) -> None:
    counter = Counter(TOKENS, "tokens", 500)
    charge: Charge = {"samples": 1, "tokens": 50, "money": 0}
    config = write_config(tmp_path)

    async def spend() -> dict[str, object]:
        register = SqliteRegister(tmp_path / "accounts.sqlite")
        meter = Meter(register, ReplicaFile.open(tmp_path / "replicas"))
        await meter.start()
        try:
            (await meter.reserve([counter], charge)).settle(charge)
            return dict((await asyncio.to_thread(list_caps, config))["replicas"])
        finally:
            await meter.close()
            await register.close()

    write_values(tmp_path, {"pacing/virtual/samples": "of no cap"})
    list_caps(config, set_spent={TOKENS: 400.0})
    for _ in range(2):
        running = {"running": 1, "status": "complete", "waiting_for": []}
        assert asyncio.run(spend()) == running
        assert list_caps(config)["replicas"] == {**running, "running": 0}
    (row,) = list_caps(config)["accounts"]
    assert (row["spent"], row["limit"]) == (500, 500)
    with pytest.raises(CapReached):
        asyncio.run(spend())


@pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")
def test_accounts_in_redis_are_listed_without_the_password(tmp_path: Path) -> None:
    with serve_redis() as server:
        assert server.send("CONFIG SET requirepass secret").startswith("+OK")
        url = server.url.replace("redis://", "redis://:secret@")
        found = list_caps(
            write_config(tmp_path, f'account_store = "{url}"'), set_spent={MONEY: 3.0}
        )
    assert found["store"] == f"127.0.0.1:{server.port}"
    assert [(row["name"], row["spent"]) for row in found["accounts"]] == [(MONEY, 3)]
