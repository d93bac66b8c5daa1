"""Given signals: fitted where they tell something, and all paths decide alike by them."""

from __future__ import annotations

import asyncio
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import BundleError, DataError
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory, make_sequential
from adacompute.evaluation.scoring.held_out import score_held_out
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.bundles.bundle_checks import check_signals
from adacompute.policies.bundles.evidence_tables import MAX_SIGNALS
from adacompute.policies.confidence import SIGNALS
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.sampling.sampler import Sampler
from adacompute.sampling.session import Session
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run

N_QUESTIONS, N_SAMPLES, TRAIN = 120, 8, np.arange(100)
KNOWN = ((1, 2, 4, 8), (2.0,), 6)
VERIFIER, RISK = "signal_verifier", "signal_risk"
Row = dict[str, Any]


def make_rows(name: str, gain: float = 1.5) -> list[Row]:
    """Questions of mixed difficulty; the signal is larger by ``gain`` in correct samples."""
    rng, rows = np.random.default_rng(5), []
    for q in range(N_QUESTIONS):
        ease = rng.uniform(0.1, 0.9)
        for i in range(N_SAMPLES):
            right = bool(rng.random() < ease)
            row = {"question_id": f"q{q}", "question": f"What is number {q}?", "sample": i}
            row |= {"answer": "right" if right else f"wrong {rng.integers(4)}", "correct": right}
            rows.append(row | {name: float(rng.normal(gain * right, 1.0))})
    return rows


def shuffle(rows: list[Row], name: str) -> list[Row]:
    """Return rows whose signals belong to other samples of the same question."""
    values = np.array([row[name] for row in rows]).reshape(N_QUESTIONS, N_SAMPLES)
    shuffled = np.random.default_rng(3).permuted(values, axis=1).ravel().tolist()
    return [{**row, name: value} for row, value in zip(rows, shuffled, strict=True)]


def open_experiment(path: Path, rows: list[Row], *, use: bool = True) -> Experiment:
    """Return the experiment of a run that the rows are imported into."""
    path.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path / "samples.parquet")
    import_samples(path / "samples.parquet", path / "run")
    pool = read_pool(Run(path / "run")).equalise()
    return Experiment(pool, *KNOWN[:2], n_permutations=KNOWN[2], use_confidence=use)


def fit(experiment: Experiment) -> SequentialPolicy:
    """Return the sequential policy that is fitted to training questions."""
    policy = make_sequential(experiment, TRAIN).policy
    assert isinstance(policy, SequentialPolicy)
    return policy


def used_signals(policy: SequentialPolicy) -> tuple[str, ...]:
    """Return the signals that a policy uses."""
    return () if policy.confidence is None else policy.confidence.signals


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return open_experiment(tmp_path_factory.mktemp("telling"), make_rows(VERIFIER))


@pytest.fixture(scope="module")
def policy(telling: Experiment) -> SequentialPolicy:
    return fit(telling)


@pytest.fixture(scope="module")
def bundle(policy: SequentialPolicy, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundle") / "policy"
    save_bundle(Bundle(policy, grader="exact"), path)
    return load_bundle(path)


@pytest.mark.parametrize("name", ["mixture", "sequential"])
def test_an_informative_signal_makes_held_out_answers_more_accurate(
    telling: Experiment, name: str
) -> None:
    votes_only = replace(telling, use_confidence=False)
    found, votes = (score_held_out(one, find_factory(name)) for one in (telling, votes_only))
    assert found.read(3.0).accuracy > votes.read(3.0).accuracy + 0.05


@pytest.mark.parametrize(
    ("name", "gain", "sign"), [(VERIFIER, 1.5, 1), (RISK, -1.5, -1), ("score", 1.5, 1)]
)
def test_a_signal_counts_with_its_sign(tmp_path: Path, name: str, gain: float, sign: int) -> None:
    policy = fit(open_experiment(tmp_path, make_rows(name, gain)))
    found = policy.confidence
    assert found is not None
    assert found.signals == (name,)
    assert (np.sign(found.slope) == sign).all()
    assert (np.sign(found.weight_slope) == sign).all()


def test_a_score_that_speaks_against_samples_or_that_is_a_grade_is_not_used(
    tmp_path: Path,
) -> None:
    against = open_experiment(tmp_path / "against", make_rows("score", -1.5))
    assert against.pool.signal_names == (*SIGNALS, "score")
    assert not used_signals(fit(against))
    graded = [{**row, "score": 5.0 * row["correct"]} for row in make_rows("score")]
    assert open_experiment(tmp_path / "grade", graded).pool.signal_names == SIGNALS


def test_a_shuffled_signal_leaves_the_policy_at_votes_alone(tmp_path: Path) -> None:
    rows = shuffle(make_rows(VERIFIER), VERIFIER)
    shuffled = open_experiment(tmp_path, rows)
    votes_only = replace(shuffled, use_confidence=False)
    assert not used_signals(fit(shuffled))
    curve, votes = (score_held_out(one, make_sequential) for one in (shuffled, votes_only))
    assert (curve.cost == votes.cost).all()
    assert (curve.accuracy == votes.accuracy).all()


class RecordedModel:
    """A model that returns the samples of each question in one order."""

    def __init__(self, rows: list[Row], order: dict[str, list[int]]) -> None:
        self._left = {
            text: [Sample(rows[i]["answer"], signals={VERIFIER: rows[i][VERIFIER]}) for i in index]
            for text, index in order.items()
        }

    async def draw(self, prompt: str, n: int) -> list[Sample]:
        """Return the next samples of a question."""
        drawn, self._left[prompt] = self._left[prompt][:n], self._left[prompt][n:]
        return drawn


def test_replay_session_and_sampler_decide_alike_by_a_given_signal(
    telling: Experiment, bundle: Bundle
) -> None:
    policy, evidence, rows = bundle.policy, telling.evidence, make_rows(VERIFIER)
    assert isinstance(policy, SequentialPolicy)
    assert policy.confidence is not None
    assert policy.schedule is not None
    assert telling.pool.sequential_features is not None
    assert policy.confidence.given == [VERIFIER]
    evidence = evidence.select((0,), policy.max_by_arm)
    cell = policy.prepare_features(telling.pool.sequential_features)[:, 0].astype(np.int64)
    samples = evidence.ordered(policy.confidence)
    ends = policy.find_ends(samples, np.repeat(cell, evidence.n_permutations)).position
    order = {
        f"What is number {q}?": evidence.order[0][q * evidence.n_permutations].tolist()
        for q in range(N_QUESTIONS)
    }
    counts = set()
    for column in (8, 16, 24):
        price = policy.schedule.prices[column]
        found = asyncio.run(answer_all(bundle, RecordedModel(rows, order), list(order), price))
        model = RecordedModel(rows, order)
        for q, (text, answer) in enumerate(zip(order, found, strict=True)):
            session = Session(bundle, text, price=price)
            while request := session.ask():
                session.tell(asyncio.run(model.draw(text, request.n)))
            end = ends[q * evidence.n_permutations, column]
            assert session.n_samples == policy.fitted.grid.counts[end].sum()
            assert (session.n_samples, session.chosen) == (answer.n_samples, answer.chosen)
            counts.add(session.n_samples)
    assert len(counts) > 2


async def answer_all(
    bundle: Bundle, model: RecordedModel, texts: list[str], price: float
) -> list[Any]:
    async with Sampler(bundle, model=model.draw, price=price) as sampler:
        return await sampler.map(texts)


def test_a_sample_without_the_signal_counts_as_an_average_one_with_a_warning(
    bundle: Bundle,
) -> None:
    assert bundle.policy.confidence is not None
    assert not bundle.needs_logprobs
    mean = float(bundle.policy.confidence.mean[0, 0])
    sessions = [Session(bundle, "What?", price=1e-4) for _ in range(2)]
    for session in sessions:
        assert session.ask()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sessions[0].tell([Sample("right", signals={VERIFIER: mean})])
    with pytest.warns(UserWarning, match=r"by signal_verifier, and one has none.*'votes'"):
        sessions[1].tell(["right"])
    first, second = (list(one.progress.evidence) for one in sessions)
    assert first == second


@pytest.mark.parametrize(
    ("name", "value"),
    [("signal_x", np.inf), ("signal_x", "high"), ("signal_x", None), ("x", 1.0), ("score", 1e31)],
)
def test_odd_signals_of_a_sample_are_refused(name: str, value: Any) -> None:
    with pytest.raises(DataError, match="a sample has the signal"):
        Sample("right", signals={name: value})
    single: Any = np.float32(1)
    assert Sample("right", signals={"score": single, VERIFIER: np.nan})


def test_a_server_cannot_give_signals_of_a_caller(bundle: Bundle, policy: SequentialPolicy) -> None:
    with pytest.raises(
        BundleError, match=r"P uses signal_verifier of each sample, which no server"
    ):
        check_signals(bundle, "P", ("score",))
    check_signals(bundle, "P", (VERIFIER,))
    check_signals(Bundle(replace(policy, confidence=None)), "P")


@pytest.mark.parametrize(
    "names",
    [
        ["other"],
        ["signal_"],
        ["signal_a b"],
        ["signal_" + "x" * 41],
        ["signal_x\n"],
        [7],
        [["signal_x"]],
        "signal_x",
        ["score", "score"],
        [f"signal_{i}" for i in range(MAX_SIGNALS + 1)],
    ],
)
def test_hostile_names_of_signals_are_refused(bundle: Bundle, tmp_path: Path, names: Any) -> None:
    save_bundle(bundle, tmp_path / "bundle")
    path = tmp_path / "bundle" / "bundle.json"
    content = json.loads(path.read_text())
    known = content["policy"]["values"]["confidence"]
    known["signals"] = names
    for table in ("mean", "scale", "slope", "weight_slope"):
        known[table] = [[0.0] * len(names)]
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "bundle")
    known["signals"] = ["score" if len(names) == 1 else f"signal_{i}" for i in range(len(names))]
    if len(names) <= MAX_SIGNALS:  # nothing else is wrong
        path.write_text(json.dumps(content))
        load_bundle(tmp_path / "bundle")
