"""Rounds: what partitions have left goes to those that want more, and never more than that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.batch.passes import Span
from adacompute.batch.ray.rounds import MAX_ROUNDS, Partition, Rounds, find_partition, share_left
from adacompute.core.errors import ConfigError
from adacompute.graders.grader import load_grader
from adacompute.models.openai import Upstream
from adacompute.spending.call_costs import CallCosts
from adacompute.testing.fake_openai import serve_fake
from test_support.batches import Case, make_job

SAMPLES = CallCosts("samples")
FEW, MANY = 330.0, 900.0
"""Leases of 128 questions each: too few samples for one half, too many for the other."""


def _write_results(directory: Path, results: Sequence[dict[str, Any]]) -> None:
    for number, result in enumerate(results):
        path = find_partition(directory, number)
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifest.json").write_text(json.dumps(result))


def _divide() -> list[Partition]:
    return [Partition(0, 0, 128, FEW), Partition(1, 128, 128, MANY)]


@given(
    rows=st.lists(st.tuples(st.integers(0, 10**14), st.integers(0, 70_000)), min_size=1),
    unit=st.sampled_from(["samples", "money"]),
)
def test_what_is_shared_is_what_is_left_and_goes_to_those_that_want_more(
    rows: list[tuple[int, int]], unit: str
) -> None:
    costs = CallCosts(unit)
    partitions = [Partition(i, i, 1, 0.0) for i in range(len(rows))]
    results = [{"left": left / costs.per_unit, "limited": limited} for left, limited in rows]
    shared = share_left(partitions, results, costs)
    given_out = [
        left + costs.to_amount(one.extra) for (left, _), one in zip(rows, shared, strict=True)
    ]
    assert sum(given_out) <= sum(left for left, _ in rows)
    if shared == partitions:
        assert all(not limited for _, limited in rows) or all(
            limited or not left for left, limited in rows
        )
        return
    for (left, limited), amount in zip(rows, given_out, strict=True):
        assert amount >= -1
        if not limited:
            assert amount <= 0, left


def test_a_batch_goes_on_in_the_round_where_it_was(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, {"total": 1230.0})
    assert rounds.start(_divide) == _divide()
    _write_results(tmp_path, [{"left": 0.0, "limited": 90}, {"left": 100.0, "limited": 0}])
    expected = replace(_divide()[0], extra=100.0)
    assert rounds.next(SAMPLES) == [expected]
    resumed = Rounds(tmp_path, {"total": 1230.0})
    assert resumed.number == 1
    assert resumed.start(_divide) == [expected]
    _write_results(tmp_path, [{"left": 0.0, "limited": 5}, {"left": 0.0, "limited": 0}])
    assert resumed.next(SAMPLES) == []
    assert not (tmp_path / "round-002.json").exists()


def test_rounds_end_when_nothing_of_what_is_left_can_be_spent(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, {})
    rounds.start(_divide)
    _write_results(tmp_path, [{"left": 0.0, "limited": 9}, {"left": 3.0, "limited": 0}])
    assert rounds.next(SAMPLES)
    _write_results(tmp_path, [{"left": 3.0, "limited": 9}, {"left": 0.0, "limited": 0}])
    assert rounds.next(SAMPLES) == []
    assert rounds.number == 1 < MAX_ROUNDS


def test_another_total_is_refused(tmp_path: Path) -> None:
    Rounds(tmp_path, {"total": 1230.0}).start(_divide)
    with pytest.raises(ConfigError, match=r"belongs to a batch with total 1230\.0, not 1300\.0"):
        Rounds(tmp_path, {"total": 1300.0}).start(_divide)


def test_questions_that_a_lease_has_stopped_go_on_with_what_others_have_left(
    tmp_path: Path,
) -> None:
    case = Case(256, 2.0, concurrency=8, lag=128)
    rounds, known = Rounds(tmp_path, {}), make_job(tmp_path / "all", case)
    source, settings = known.span.source, known.settings

    def run(partition: Partition, base_url: str) -> dict[str, Any]:
        job = replace(
            known,
            directory=find_partition(tmp_path, partition.number),
            grader=load_grader("numeric"),  # no two answers agree, so they cost more than expected
            span=Span(source, partition.first, partition.n_questions),
            settings=replace(settings, total=partition.lease),
            extra=partition.extra,
        )
        return asyncio.run(job.run(Upstream(base_url, "fake")))

    with serve_fake() as fake:
        partitions = rounds.start(_divide)
        first = [run(one, fake.base_url) for one in partitions]
        limited = first[0]["limited"]
        assert limited
        assert first[1]["left"] > limited
        while partitions := rounds.next(SAMPLES):
            for one in partitions:
                run(one, fake.base_url)
        choices = fake.stats()["choices"]
    results = rounds.results()
    assert results[0]["limited"] < limited
    assert results[0]["cost"] > FEW
    assert choices == sum(one["cost"] for one in results) <= FEW + MANY
