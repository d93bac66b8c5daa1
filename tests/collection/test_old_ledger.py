"""Runs made before: what commit 12a9908 had paid for, with a call under way when it was killed.

The file holds 24 samples of the arm "small", 12 of them scored, and 15 of the arm "big", of six
questions. Four calls of the last process were open.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adacompute.collection.old_ledger import LEDGER, import_ledger
from adacompute.collection.plan import Plan, read_plan
from adacompute.collection.store import CollectionStore
from adacompute.core.errors import DataError
from adacompute.spending.account import LimitReached, SpendingAccount
from adacompute.spending.call_costs import CallCosts
from adacompute.stages.collect import collect_run
from adacompute.storage.paid_samples import LOST, SAMPLE, SCORE, read_payments, sum_payments

OLD = Path(__file__).parents[1] / "data" / "old_run" / LEDGER
HELD = 11_542_000
"""What the account of the old run held, in billionths: samples, scores and leases."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    shutil.copy(OLD, tmp_path / "run" / LEDGER)
    return tmp_path / "run"


def imported(run: Path) -> CollectionStore:
    store = CollectionStore(run)
    import_ledger(run / LEDGER, store)
    return store


def old_rows(columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{OLD.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(
            f"SELECT question, arm, sample, {columns} "  # noqa: S608 - our own names
            "FROM samples JOIN arms USING (arm_id) ORDER BY question, arm_id, sample"
        ).fetchall()


def test_samples_arms_scores_and_costs_survive(run: Path) -> None:
    before = (run / LEDGER).read_bytes()
    store = imported(run)
    assert (run / LEDGER).read_bytes() == before
    assert store.ids == [f"q{i}" for i in range(6)]
    assert [(arm["arm"], arm["model"]) for arm in store.arms] == [
        ("small", "fake"),
        ("big", "fake"),
    ]
    assert [json.loads(arm["settings"]).get("effort") for arm in store.arms] == [None, "high"]
    for place in (store, CollectionStore(run)):
        assert place.count("small", range(6), 4) == (24, 12)
        assert place.count("big", range(6), 8) == (15, 0)
    names = ("text", "finish_reason", "prompt_tokens", "completion_tokens", "mean_logprob")
    more = ("is_estimated", "latency_s", "entropy", "top_logprobs", "token_logprobs")
    read = [
        (
            store.ids[position],
            arm,
            one.number,
            *(getattr(one.sample, name) for name in (*names, *more)),
            one.cost,
            one.score,
        )
        for position, by_arm in store.read()
        for arm in ("small", "big")
        for one in by_arm.get(arm, ())
    ]
    assert read == old_rows(", ".join([*names, *more, "cost", "score"]))
    assert len(read) == 39


def test_what_was_held_is_spent_and_counts_as_lost(run: Path) -> None:
    store = imported(run)
    totals = sum_payments(store.segments)
    assert totals.counts == {SAMPLE: 39, SCORE: 12, LOST: 1}
    assert totals.spent == HELD
    assert totals.lost == HELD - sum(cost for *_, cost in old_rows("cost")) > 0

    async def reserve(amount: int) -> None:
        async with SpendingAccount(store.directory, CallCosts("money"), limit=HELD + 10) as account:
            await account.reserve(amount)

    asyncio.run(reserve(10))
    with pytest.raises(LimitReached):
        asyncio.run(reserve(11))


def test_nothing_is_imported_twice(run: Path) -> None:
    first = list(read_payments(imported(run).segments))
    with closing(sqlite3.connect(run / LEDGER)) as database:
        database.execute("DELETE FROM samples WHERE question = 'q0'")
        database.commit()
    again = imported(run)
    assert list(read_payments(again.segments)) == first
    assert len(list(again.segments.iterdir())) == 1


def test_an_import_that_was_killed_is_repeated(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("adacompute.collection.old_ledger.write_segment", fail)
        with pytest.raises(KeyboardInterrupt):
            imported(run)
    assert sum_payments(imported(run).segments).spent == HELD


def test_a_run_without_prices_or_with_older_columns_is_imported(run: Path) -> None:
    with closing(sqlite3.connect(run / LEDGER)) as database:
        database.execute("DROP TABLE register")
        for name in ("entropy", "top_logprobs", "min_logprob_window", "token_logprobs"):
            database.execute(f"ALTER TABLE samples DROP COLUMN {name}")
        database.commit()
    totals = sum_payments(imported(run).segments)
    assert (totals.counts, totals.lost) == ({SAMPLE: 39, SCORE: 12}, 0)


def test_a_directory_with_any_name_is_imported(run: Path) -> None:
    strange = run.rename(run.parent / "run 50%25?#1")
    assert sum_payments(imported(strange).segments).spent == HELD


def test_other_files_and_formats_are_refused(run: Path) -> None:
    path = run / LEDGER
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
        database.commit()
    with pytest.raises(DataError, match="cannot be read as the ledger of a run: its format is 99"):
        imported(run)
    path.write_bytes(b"no database, and long enough to be looked at as one" * 40)
    with pytest.raises(DataError, match=f"{path} cannot be read as the ledger of a run"):
        imported(run)
    path.write_bytes(OLD.read_bytes()[:30_000])
    with pytest.raises(DataError, match="cannot be read as the ledger of a run"):
        imported(run)
    assert sum_payments(CollectionStore(run).segments).spent == 0


def test_damaged_bytes_are_read_or_refused(run: Path) -> None:
    dice, data, store = random.Random(3), OLD.read_bytes(), CollectionStore(run)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 20, 400))):
            damaged[dice.randrange(len(data))] = dice.randrange(256)
        (run / LEDGER).write_bytes(damaged)
        with suppress(DataError):
            import_ledger(run / LEDGER, store)
        shutil.rmtree(store.segments, ignore_errors=True)


def plan_of(tmp_path: Path, base_url: str) -> Plan:
    rows = [
        {"question_id": f"q{i}", "question": f"What is {i} + 1?", "gold": "1"} for i in range(6)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prices.toml").write_text("[models.fake]\ninput = 1.0\noutput = 10.0\n")
    return read_plan(
        str(tmp_path / "q.jsonl"),
        base_url=base_url,
        model="fake",
        grader="numeric",
        max_tokens=40,
        token_prices=tmp_path / "prices.toml",
        max_cost=0.05,
        arms=({"name": "small", "samples": 4}, {"name": "big", "effort": "high", "samples": 8}),
    )


def test_collecting_goes_on_and_buys_only_what_is_missing(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")
    from adacompute.models.capabilities_cache import cache_path, save_cached
    from adacompute.models.messages import Capabilities
    from adacompute.testing.fake_openai import FakeSettings, serve_fake

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serve_fake(FakeSettings(completion_tokens=20, n="ignored")) as fake:
        save_cached(cache_path(), fake.base_url, "fake", Capabilities())
        said = collect_run(plan_of(tmp_path, fake.base_url), run)
        assert fake.stats()["choices"] == 6 * 8 - 15
    assert [(arm["samples"], arm["new_samples"]) for arm in said["arms"]] == [(24, 0), (48, 33)]
    assert said["lost"] > 0
    assert said["spent"] == pytest.approx(HELD / 1e9 + said["arms"][1]["cost"])
    table = pq.read_table(run / "samples.parquet")
    assert table.num_rows == 72
    assert table["score"].null_count == 60
