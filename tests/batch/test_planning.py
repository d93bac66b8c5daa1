"""Plans of the local engine: equal to those in memory, for any shards, blocks and processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.batch.planning import local as planning
from adacompute.batch.planning import spool
from adacompute.batch.planning.cost_curves import cell_costs, frontier_curve, router_curve
from adacompute.batch.planning.expected_spend import expect_spend
from adacompute.batch.planning.local import PlanProgress, make_plan, prepare_batch
from adacompute.batch.planning.plan import BatchPlan, plan_at_total
from adacompute.batch.planning.plan_output import ActionFiles, write_first_actions
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import QuestionSource, open_questions
from adacompute.core.errors import ConfigError, InfeasibleBudget
from adacompute.core.types import hash_text
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.episode import Episode, start_state
from adacompute.policies.policy import SampleEvidence, SampleMatrix, SeenSamples
from adacompute.policies.router import RouterPolicy
from adacompute.sampling.blocks import question_block_features

N_QUESTIONS = 400
ALONE = WorkerProcesses(1)
KINDS = [
    "sequential",
    "sequential_in_rounds",
    "router",
    "mixture",
    "corrected",
    "corrected_uniform",
    "arm_mixture",
]


def plan_batch(
    bundle: Bundle, source: QuestionSource, *, total: float, directory: Path
) -> BatchPlan:
    """Prepare a batch in this process, and plan it."""
    return make_plan(prepare_batch(bundle, source, directory=directory, processes=ALONE), total)


@pytest.fixture
def bundle(request: pytest.FixtureRequest) -> Bundle:
    name = request.param
    if name == "sequential_in_rounds":
        shipped: Bundle = request.getfixturevalue("sequential")
        return replace(shipped, max_rounds=2)
    found: Bundle = request.getfixturevalue(name)
    return found


every_kind = pytest.mark.parametrize("bundle", KINDS, indirect=True)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def change(shard_rows: int, block_rows: int) -> None:
        monkeypatch.setattr(spool, "SHARD_ROWS", shard_rows)
        monkeypatch.setattr(spool, "BLOCK_ROWS", block_rows)

    return change


def price_in_memory(bundle: Bundle, texts: list[str], total: float) -> float:
    """Return the price of a batch that is prepared as one block."""
    features = question_block_features(bundle, texts)
    prepared = bundle.policy.prepare_features(features)
    n = len(texts)
    if isinstance(bundle.policy, RouterPolicy):
        choice = [model.predict(features).argmax(axis=1) for model in bundle.policy.models]
        curve = router_curve(bundle, np.stack([np.bincount(one, minlength=4) for one in choice]))
    elif bundle.max_rounds is None and prepared.shape[1]:
        costs = cell_costs(bundle)
        cell = prepared[:, 0].astype(np.int64)
        curve = costs.curve(np.bincount(cell, minlength=costs.costs.shape[1]))
    else:
        curve = frontier_curve(bundle)
    return plan_at_total(curve, n_questions=n, total=total).price


def first_action(bundle: Bundle, price: float, key: int, cell: int) -> tuple[Any, int]:
    """Return the first action of a policy that sees arms, for one question."""
    known: dict[str, Any] = {"price": price, "key": key, "cell": cell, "rounds_left": 99}
    found = bundle.policy.next_level(SeenSamples([], [], SampleEvidence([], [])), **known)
    assert found is not None
    level = bundle.policy.levels[found[0]]
    assert found[1] == level.n_samples
    return level.model, level.n_samples


def actions_in_memory(bundle: Bundle, texts: list[str], price: float) -> list[tuple[Any, int]]:
    """Return the arm and the samples that the policy itself requests first."""
    features = bundle.policy.prepare_features(question_block_features(bundle, texts))
    if bundle.policy.arms:
        return [
            first_action(bundle, price, hash_text(text), int(own[0]) if len(own) else 0)
            for text, own in zip(texts, features, strict=True)
        ]
    episode = Episode.start(
        bundle.policy,
        price,
        start_state(
            key=np.array([hash_text(text) for text in texts], dtype=np.uint64),
            features=features,
            cost=np.broadcast_to(bundle.level_cost, (len(texts), bundle.level_cost.shape[1])),
            samples=SampleMatrix(np.empty((len(texts), 0), dtype=np.int64)),
            max_rounds=bundle.max_rounds or 99,
        ),
    )
    levels = [bundle.policy.levels[i] for i in episode.decide().state.level]
    return [(level.model, level.n_samples) for level in levels]


def read_parts(written: ActionFiles) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in written.paths])


@every_kind
@pytest.mark.parametrize(("shard_rows", "block_rows"), [(1, 7), (60, 64), (1000, 1)])
def test_plans_equal_those_in_memory(
    bundle: Bundle,
    shard_rows: int,
    block_rows: int,
    small_shards: Callable[[int, int], None],
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    tmp_path: Path,
) -> None:
    small_shards(shard_rows, block_rows)
    texts = make_texts(N_QUESTIONS)
    source = open_questions([write_questions(texts)])
    total = 2.2 * bundle.level_cost[0, 0] * len(texts)
    batch = prepare_batch(bundle, source, directory=tmp_path / "job", processes=ALONE)
    plan = make_plan(batch, total)
    assert plan.price == pytest.approx(price_in_memory(bundle, texts, total), rel=1e-12)
    assert plan.expected_cost <= total * (1 + 1e-9)
    assert plan.n_questions == len(texts)
    assert expect_spend(batch, plan).share_until(len(texts)) == 1.0
    table = read_parts(write_first_actions(batch, plan, tmp_path / "plan", ALONE))
    assert table["question_id"].to_pylist() == [f"q{i}" for i in range(len(texts))]
    n_samples = table["n_samples"].to_pylist()
    arm = table["arm"].to_pylist() if "arm" in table.column_names else [None] * len(texts)
    found = list(zip(arm, n_samples, strict=True))
    assert found == actions_in_memory(bundle, texts, plan.price)


@every_kind
def test_rows_without_text_cost_nothing(
    bundle: Bundle,
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    tmp_path: Path,
) -> None:
    texts: list[Any] = list(make_texts(120))
    source = open_questions([write_questions(texts)])
    total = 2.5 * bundle.level_cost[0, 0] * 100
    kept = [text for i, text in enumerate(texts) if i % 6]
    holes = [text if i % 6 else None for i, text in enumerate(texts)]
    source = open_questions([write_questions(holes)])
    batch = prepare_batch(bundle, source, directory=tmp_path / "job", processes=ALONE)
    plan = make_plan(batch, total)
    assert plan.n_questions == 100
    assert plan.price == pytest.approx(price_in_memory(bundle, kept, total), rel=1e-12)
    table = read_parts(write_first_actions(batch, plan, tmp_path / "plan", ALONE))
    found = table["n_samples"].to_pylist()
    assert [i for i, n in enumerate(found) if n is None] == list(range(0, 120, 6))


def test_a_batch_without_any_text_is_refused(
    sequential: Bundle, write_questions: Callable[..., str], tmp_path: Path
) -> None:
    source = open_questions([write_questions([None] * 9)])
    with pytest.raises(ConfigError):
        plan_batch(sequential, source, total=9.0, directory=tmp_path)


def test_totals_below_one_sample_per_question_are_refused(
    sequential: Bundle, router: Bundle, write_questions: Callable[..., str], tmp_path: Path
) -> None:
    source = open_questions([write_questions(["a", "b", "c", "d"])])
    for i, bundle in enumerate((sequential, router)):
        with pytest.raises(InfeasibleBudget):
            plan_batch(bundle, source, total=3.9, directory=tmp_path / str(i))


def test_finished_shards_are_not_prepared_again(
    sequential: Bundle,
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    small_shards: Callable[[int, int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_shards(50, 64)
    source = open_questions([write_questions(make_texts(300))])
    done: list[int] = []
    prepare = planning.prepare_shard

    def dies(task: planning.ShardTask) -> spool.ShardSummary:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task.shard.number)
        return prepare(task)

    monkeypatch.setattr(planning, "prepare_shard", dies)
    with pytest.raises(KeyboardInterrupt):
        plan_batch(sequential, source, total=700.0, directory=tmp_path)
    again: list[int] = []

    def counts(task: planning.ShardTask) -> spool.ShardSummary:
        again.append(task.shard.number)
        return prepare(task)

    monkeypatch.setattr(planning, "prepare_shard", counts)
    resumed = plan_batch(sequential, source, total=700.0, directory=tmp_path)
    assert done == [0, 1]
    assert again == list(range(2, 6))
    whole = plan_batch(sequential, source, total=700.0, directory=tmp_path / "other")
    assert resumed.price == whole.price


def test_another_bundle_or_source_is_prepared_anew(
    sequential: Bundle,
    mixture: Bundle,
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    tmp_path: Path,
) -> None:
    texts = make_texts(60)
    source = open_questions([write_questions(texts)])
    plan_batch(sequential, source, total=150.0, directory=tmp_path)
    manifest = tmp_path / "spool" / "shard-000000.json"
    first = json.loads(manifest.read_text())["fingerprint"]
    plan_batch(mixture, source, total=150.0, directory=tmp_path)
    assert json.loads(manifest.read_text())["fingerprint"] != first
    manifest.write_text("{damaged")
    plan_batch(sequential, source, total=150.0, directory=tmp_path)
    assert json.loads(manifest.read_text())["fingerprint"] == first


@pytest.mark.parametrize("bundle", ["sequential", "router"], indirect=True)
def test_processes_give_the_same_plan_and_report_progress(
    bundle: Bundle,
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    small_shards: Callable[[int, int], None],
    tmp_path: Path,
) -> None:
    small_shards(50, 64)
    texts = make_texts(300)
    source = open_questions([write_questions(texts)])
    seen: list[PlanProgress] = []
    total = 2.5 * bundle.level_cost[0, 0] * 300
    with WorkerProcesses(2) as processes:
        batch = prepare_batch(
            bundle, source, directory=tmp_path / "job", processes=processes, on_progress=seen.append
        )
        plan = make_plan(batch, total)
        written = write_first_actions(batch, plan, tmp_path / "plan", processes)
    assert plan.price == pytest.approx(price_in_memory(bundle, texts, total), rel=1e-12)
    assert seen[-1].n_done == seen[-1].n_questions == 300
    assert "300 of 300 questions" in str(seen[-1])
    assert sum(written.counts.values()) == 300
    assert read_parts(written)["question_id"].to_pylist() == [f"q{i}" for i in range(300)]
