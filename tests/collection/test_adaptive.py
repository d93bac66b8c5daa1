"""Adaptive collection in rounds, by a scripted sampler and from a fake upstream."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.collection.adaptive import RoundSamples, collect_rounds, plan_round
from adacompute.collection.collector import CollectionResult, Question
from adacompute.collection.store import CollectionStore
from adacompute.core.posterior import INITIAL_SAMPLES
from adacompute.graders.grader import load_grader
from adacompute.models.messages import Sample
from adacompute.storage.paid_samples import Payment, write_segment

MAX_SAMPLES = 12


def is_correct(name: str, sample: int) -> bool:
    """Easy questions are always correct, hard ones never, mixed ones sometimes."""
    kind, number = name.split("/")
    return kind == "easy" or (
        kind == "mixed" and (sample * 7 + int(number)) % 5 < 2 + int(number) % 2
    )


@dataclass
class ScriptedSampler:
    """Writes scripted samples into a store, and counts rounds."""

    store: CollectionStore
    rounds: list[tuple[int, int]] = field(default_factory=list)
    fails: Callable[[str], bool] = lambda _: False
    stops_after: int | None = None
    result: CollectionResult = field(default_factory=CollectionResult)

    async def sample(self, questions: Sequence[Question], n_samples: int) -> CollectionResult:
        self.rounds.append((len(questions), n_samples))
        payments = []
        for position, _ in questions:
            name = self.store.ids[position]
            missing = self.store.missing("default", position, n_samples)
            for number in [] if self.fails(name) else missing:
                text = "the answer is 7" if is_correct(name, number) else "the answer is 8"
                payments.append(_paid(position, number, text))
        store_all(self.store, payments)
        self.result.new_samples += len(payments)
        self.result.stopped = "requested" if self.stops_after == len(self.rounds) else None
        return self.result


def store_all(store: CollectionStore, payments: Sequence[Payment]) -> None:
    """Write payments as the next segment."""
    store.segments.mkdir(exist_ok=True)
    if payments:
        write_segment(store.segments, len(list(store.segments.iterdir())), payments)
        store.note(payments)


def _paid(position: int, number: int, text: str) -> Payment:
    return Payment(position, "default", number, 1, Sample(text))


def collect(
    path: Path, *, samples: int = MAX_SAMPLES, **script: Any
) -> tuple[CollectionResult, ScriptedSampler, Counter[str]]:
    names = [f"{kind}/{i}" for kind in ("easy", "hard", "mixed") for i in range(8)]
    store = CollectionStore(path)
    positions = store.register_questions(names)
    model = ScriptedSampler(store, **script)
    graded = RoundSamples(store, "default", load_grader("numeric"), dict.fromkeys(positions, "7"))
    asked = [(i, f"text of {name}") for i, name in zip(positions, names, strict=True)]
    result = asyncio.run(
        collect_rounds(asked, graded, model.sample, max_samples=samples, budget=2.0)
    )
    counts = {store.ids[i]: len(by_arm["default"]) for i, by_arm in CollectionStore(path).read()}
    return result, model, Counter(counts)


def test_only_undecided_questions_get_more_samples(tmp_path: Path) -> None:
    result, model, counts = collect(tmp_path)
    assert model.rounds[0] == (24, INITIAL_SAMPLES)
    assert all(asked < 24 for asked, _ in model.rounds[1:])
    assert len(counts) == 24
    assert INITIAL_SAMPLES <= min(counts.values()) < max(counts.values()) <= MAX_SAMPLES
    by_kind = {k: sum(counts[f"{k}/{i}"] for i in range(8)) for k in ("easy", "hard", "mixed")}
    assert by_kind["mixed"] > max(by_kind["easy"], by_kind["hard"])
    assert (result.done, result.missing, result.stopped) == (counts.total(), 0, None)
    assert result.new_samples == counts.total() < 24 * MAX_SAMPLES


def test_stopped_collection_resumes_exactly(tmp_path: Path) -> None:
    _, _, whole = collect(tmp_path / "whole")
    stopped, _, _ = collect(tmp_path / "parts", stops_after=2)
    assert stopped.stopped == "requested"
    assert stopped.missing > 0
    _, _, rest = collect(tmp_path / "parts")
    assert rest == whole
    again, model, _ = collect(tmp_path / "parts")
    assert (again.new_samples, again.missing, model.rounds) == (0, 0, [])


@pytest.mark.parametrize("samples", [1, 3, 5])
def test_max_samples_is_never_exceeded(tmp_path: Path, samples: int) -> None:
    result, _, counts = collect(tmp_path, samples=samples)
    assert max(counts.values()) <= samples
    assert min(counts.values()) >= min(INITIAL_SAMPLES, samples)
    assert result.missing == 0


def test_failing_question_is_missing_and_does_not_block_others(tmp_path: Path) -> None:
    _, _, whole = collect(tmp_path / "whole")
    result, model, counts = collect(tmp_path / "some", fails=lambda name: name == "hard/3")
    assert result.missing == INITIAL_SAMPLES
    assert counts["hard/3"] == 0
    assert len(counts) == 23
    assert counts.total() > 23 * INITIAL_SAMPLES
    assert len(model.rounds) < 4 * MAX_SAMPLES
    assert whole["hard/3"] >= INITIAL_SAMPLES


def test_samples_of_other_questions_and_arms_are_ignored(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path)
    store.register_questions(["other", "mine", "new"])
    store_all(store, [_paid(0, 0, "7"), _paid(1, 0, "7"), replace(_paid(1, 1, "7"), arm="big")])
    graded = RoundSamples(store, "default", load_grader("numeric"), {1: "7", 2: "7"})
    assert graded.read() == {1: ([0], [True])}
    assert plan_round(graded.read(), [1, 2], max_samples=1, budget=2.0) == {2: (1, 0)}


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "adacompute", *map(str, words), "--json"]
    return subprocess.run(asked, capture_output=True, text=True, check=False)


def write(path: Path, gold: list[str | None]) -> Path:
    rows = [
        {"question_id": f"q{i:02}", "question": f"What is {i} twice?", "gold": g}
        for i, g in enumerate(gold)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_adaptive_collection_from_a_fake_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")
    from adacompute.testing.fake_openai import FakeSettings, serve_fake

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, size = tmp_path / "run", 30
    with serve_fake(FakeSettings()) as fake:
        server = ("--base-url", fake.base_url, "--model", "fake", "--grader", "numeric")
        blind = write(tmp_path / "blind.parquet", ["1000"] * size)
        assert run("collect", blind, "--run", tmp_path / "a", *server, "--samples", "1").stdout
        first = pq.read_table(tmp_path / "a" / "samples.parquet")["answer"].to_pylist()
        gold = [said if i % 2 else "1000" for i, said in enumerate(first)]
        adaptive = (
            "--samples",
            str(MAX_SAMPLES),
            "--config",
            "adaptive=true",
            "--config",
            "budget=2",
        )
        source = write(tmp_path / "q.parquet", gold)
        asked = ("collect", source, "--run", place, *server, *adaptive)
        dry = json.loads(run(*asked, "--dry-run").stdout)["arms"][0]
        assert (dry["samples"], dry["min_samples"]) == (size * MAX_SAMPLES, size * INITIAL_SAMPLES)
        before = fake.stats()["choices"]
        arm = json.loads(run(*asked).stdout)["arms"][0]
        assert arm["missing"] == 0
        assert arm["samples"] == arm["new_samples"] == fake.stats()["choices"] - before
        assert size * INITIAL_SAMPLES < arm["samples"] < size * MAX_SAMPLES
        again = json.loads(run(*asked).stdout)["arms"][0]
        assert (again["new_samples"], again["samples"]) == (0, arm["samples"])
    table = pq.read_table(place / "samples.parquet")
    counts = Counter(table["question_id"].to_pylist())
    assert INITIAL_SAMPLES <= min(counts.values()) < max(counts.values()) <= MAX_SAMPLES
    refused = run("research", "estimate", place)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "lower the levels or collect more" in refused.stderr
    done = run("research", "estimate", place, "--method", "posterior")
    assert len(json.loads(done.stdout)["levels"]) == 5
    assert json.loads(run("research", "solve", place, "--budget", "2").stdout)["cost"] <= 2
    wrong = run("research", "estimate", place, "--method", "posterior", "--config", "vote=any")
    assert (wrong.returncode, "'majority'" in wrong.stderr) == (2, True)
    scored = run("evaluate", place, "--budgets", "2", "--policies", "mixture,oracle")
    assert json.loads(scored.stdout)["rows"]


@pytest.mark.parametrize(
    ("gold", "more", "message"),
    [
        (
            ["1", None],
            ("--config", "adaptive=true"),
            "'q01' has none: collect without adaptive",
        ),
        (["1", "2"], ("--config", "budget=2"), "needs adaptive=true"),
        (["1", "2"], ("--config", "adaptive=true", "--config", "budget=0.5"), "at least 1"),
    ],
)
def test_wrong_use_is_refused(
    tmp_path: Path, gold: list[str | None], more: tuple[str, ...], message: str
) -> None:
    source = write(tmp_path / "q.parquet", gold)
    server = ("--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--grader", "numeric")
    done = run("collect", source, "--run", tmp_path / "run", *server, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
