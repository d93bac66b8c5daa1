from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adacompute.collection.collector import CollectionProgress, Collector
from adacompute.collection.cost_cap import CostCap
from adacompute.collection.limits import AdaptiveLimiter
from adacompute.collection.plan import CollectionLevel, prompt_size
from adacompute.core.errors import DataError, ModelError, ModelTimeout, RateLimited, RequestRejected
from adacompute.models.messages import Prompt, Sample, Settings
from adacompute.models.templates import Template
from adacompute.spending.token_prices import TokenPrices
from adacompute.storage.ledger import Ledger, StoredSample

TOKEN_PRICES = TokenPrices(input=1.0, output=2.0)
PRICE = 50_000
EACH = (20 * 1 + 5 * 2) * 1000
"""Cost of a score and of a sample."""


@dataclass
class Scripted:
    """A model that follows a script: ``plan`` returns an error or a number of samples."""

    plan: Callable[[int, int], Exception | int] = lambda _, count: count
    waits: Callable[[int], float] = lambda _: 0.001
    calls: int = 0
    seeds: list[int | None] = field(default_factory=list)

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
        assert prompt.messages
        assert settings.max_tokens == 10
        self.calls += 1
        self.seeds.append(seed)
        await asyncio.sleep(self.waits(self.calls))
        planned = self.plan(self.calls, count)
        if isinstance(planned, Exception):
            raise planned
        return [
            Sample(
                f"{seed} {i}",
                -0.1,
                5,
                "stop",
                prompt_tokens=20,
                latency_s=0.001,
                samples_per_call=planned,
            )
            for i in range(planned)
        ]

    async def score(self, question: str, text: str) -> float:
        assert question.startswith("text ")
        self.calls += 1
        planned = self.plan(self.calls, 1)
        await asyncio.sleep(0.001)
        if isinstance(planned, Exception):
            raise planned
        return len(text) / 10


def collect(
    path: Path,
    model: Scripted,
    *,
    questions: int = 6,
    n_samples: int = 4,
    samples_per_call: int = 1,
    limit: int | None = None,
    stop_after: int | None = None,
    scorer: Scripted | None = None,
    limiter: AdaptiveLimiter | None = None,
) -> tuple[CollectionProgress, list[StoredSample]]:
    async def main() -> tuple[CollectionProgress, list[StoredSample]]:
        ledger = Ledger(path / "ledger.sqlite")
        level = CollectionLevel(
            "default",
            "m",
            model,
            Template(),
            Settings(max_tokens=10),
            TOKEN_PRICES,
            n_samples,
            samples_per_call,
            scorer=scorer,
            score_price=PRICE if scorer else 0,
        )
        asked = [(f"q{i}", f"text {i}") for i in range(questions)]

        def report(now: CollectionProgress) -> None:
            if stop_after is not None and now.new_samples >= stop_after:
                collector.stop("requested")

        shared = limiter or AdaptiveLimiter(max_calls=8)
        try:
            async with CostCap(ledger, limit) as cap:
                collector = Collector(ledger, level, asked, shared, cap, report=report)
                progress = await collector.run()
            return progress, list(ledger.samples(1))
        finally:
            ledger.close()

    return asyncio.run(main())


class Busy(Scripted):
    """A model that rejects the first attempt at every sample."""

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
        first = seed not in self.seeds
        drawn = await super().call(prompt, settings, count=count, seed=seed)
        if first:
            raise RateLimited("busy")
        return drawn


def complete(samples: list[StoredSample], questions: int, n_samples: int) -> bool:
    keys = Counter((sample.question, sample.sample) for sample in samples)
    expected = {(f"q{i}", d) for i in range(questions) for d in range(n_samples)}
    return set(keys) == expected and set(keys.values()) == {1}


@pytest.mark.parametrize("samples_per_call", [1, 3, 4])
def test_every_sample_is_collected_once_with_its_own_seed(
    tmp_path: Path, samples_per_call: int
) -> None:
    model = Scripted()
    progress, samples = collect(tmp_path, model, samples_per_call=samples_per_call)
    assert complete(samples, 6, 4)
    assert (progress.done, progress.missing, progress.new_samples) == (24, 0, 24)
    assert progress.calls == model.calls == 6 * -(-4 // samples_per_call)
    assert len(set(model.seeds)) == len(model.seeds)  # no two calls of any two questions
    _, again = collect(tmp_path / "again", Scripted(), samples_per_call=samples_per_call)
    assert {(s.question, s.sample, s.text) for s in again} == {
        (s.question, s.sample, s.text) for s in samples
    }
    assert sum(sample.cost for sample in samples) == progress.cost


def test_prompt_of_a_shared_call_is_paid_once(tmp_path: Path) -> None:
    single, _ = collect(tmp_path / "a", Scripted(), samples_per_call=1)
    shared, _ = collect(tmp_path / "b", Scripted(), samples_per_call=4)
    assert single.cost - shared.cost == 6 * 3 * 20 * 1000


def test_repeated_collection_samples_only_what_is_missing(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    idle = Scripted()
    progress, _ = collect(tmp_path, idle)
    assert (idle.calls, progress.done, progress.new_samples) == (0, 24, 0)
    progress, samples = collect(tmp_path, more := Scripted(), n_samples=6)
    assert more.calls == 12
    assert complete(samples, 6, 6)


def test_missing_choices_are_requested_again(tmp_path: Path) -> None:
    progress, samples = collect(
        tmp_path, Scripted(lambda _, count: max(1, count // 2)), samples_per_call=4
    )
    assert complete(samples, 6, 4)
    assert progress.missing == 0


def test_extra_choices_are_not_stored(tmp_path: Path) -> None:
    _, samples = collect(tmp_path, Scripted(lambda _, count: count + 2), samples_per_call=2)
    assert complete(samples, 6, 4)


def test_temporary_failures_are_retried_a_bounded_number_of_times(tmp_path: Path) -> None:
    busy = Busy()
    progress, samples = collect(tmp_path / "a", busy)
    assert complete(samples, 6, 4)
    assert (progress.failed, busy.calls) == ({"busy": 24}, 48)
    dead = Scripted(lambda _, __: ModelError("down"))
    progress, samples = collect(tmp_path / "b", dead, questions=2, n_samples=2)
    assert (samples, progress.missing) == ([], 4)
    assert dead.calls == 4 * 3


def test_retry_waits_do_not_lower_the_limit(tmp_path: Path) -> None:
    patient = Scripted(waits=lambda call: 0.03 if call % 3 == 0 else 0.001)
    limiter = AdaptiveLimiter(max_calls=8)
    collect(tmp_path, patient, questions=20, limiter=limiter)
    assert limiter.growing


def test_rejected_calls_are_final_and_stop_the_collection(tmp_path: Path) -> None:
    model = Scripted(lambda _, __: RequestRejected("no such model"))
    progress, samples = collect(tmp_path, model, questions=100)
    assert samples == []
    assert progress.stopped == "every call is rejected: no such model"
    assert 20 <= model.calls < 60


def test_max_cost_is_never_exceeded(tmp_path: Path) -> None:
    progress, samples = collect(tmp_path, Scripted(), limit=10 * EACH)
    assert progress.cost <= 10 * EACH
    assert 5 <= len(samples) <= 10
    assert progress.stopped is not None
    assert "may cost more" in progress.stopped
    again, samples = collect(tmp_path, Scripted(), limit=24 * EACH + 100_000)
    assert complete(samples, 6, 4)
    assert again.missing == 0


def test_only_the_given_questions_are_counted(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    progress, _ = collect(tmp_path, Scripted(), questions=2)
    assert (progress.planned, progress.done, progress.missing) == (8, 8, 0)


@pytest.mark.parametrize("samples_per_call", [1, 4])
def test_every_sample_is_scored_and_scores_are_paid(tmp_path: Path, samples_per_call: int) -> None:
    scorer = Scripted()
    progress, samples = collect(
        tmp_path, Scripted(), samples_per_call=samples_per_call, scorer=scorer
    )
    assert complete(samples, 6, 4)
    assert [s.score for s in samples] == [len(s.text) / 10 for s in samples]
    assert (scorer.calls, progress.scored, progress.unscored) == (24, 24, 0)
    assert progress.cost == sum(s.cost for s in samples)
    assert progress.cost == 24 * (5 * 2000 + PRICE) + 24 // samples_per_call * 20 * 1000
    collect(tmp_path, idle := Scripted(), samples_per_call=samples_per_call, scorer=idle)
    assert idle.calls == 0


@pytest.mark.parametrize("error", [ModelError("down"), RequestRejected("no"), RateLimited("busy")])
def test_failed_scores_are_requested_later_without_new_samples(
    tmp_path: Path, error: ModelError
) -> None:
    scorer = Scripted(lambda call, count: error if call <= 10 else count)
    progress, samples = collect(tmp_path, Scripted(), scorer=scorer)
    assert complete(samples, 6, 4)
    assert (progress.missing, progress.unscored, progress.failed) == (0, 10, {str(error): 10})
    assert sum(s.score is None for s in samples) == 10
    progress, samples = collect(tmp_path, model := Scripted(), scorer=(again := Scripted()))
    assert (model.calls, again.calls, progress.unscored) == (0, 10, 0)
    assert progress.cost == 10 * PRICE
    assert sum(s.cost for s in samples) == 24 * (EACH + PRICE)


def test_scores_are_added_to_unscored_samples(tmp_path: Path) -> None:
    collect(tmp_path, Scripted(), n_samples=3)
    progress, samples = collect(tmp_path, model := Scripted(), scorer=(scorer := Scripted()))
    assert (model.calls, scorer.calls, progress.unscored) == (6, 24, 0)
    assert complete(samples, 6, 4)


def test_scorer_that_rejects_every_call_stops_the_collection(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: RequestRejected("no such path"))
    progress, samples = collect(tmp_path, Scripted(), questions=100, scorer=scorer)
    assert progress.stopped == "every call is rejected: no such path"
    assert 20 <= len(samples) < 60


def test_max_cost_includes_scores(
    tmp_path: Path,
) -> None:
    limit = 10 * (EACH + PRICE)
    progress, samples = collect(tmp_path, Scripted(), limit=limit, scorer=Scripted())
    assert progress.cost == sum(s.cost for s in samples) <= limit
    assert progress.unscored == 0
    assert 5 <= len(samples) <= 10
    assert "may cost more" in str(progress.stopped)


def test_timed_out_score_counts_as_paid(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: ModelTimeout("hung"))
    progress, samples = collect(tmp_path, Scripted(), questions=1, n_samples=1, scorer=scorer)
    assert (len(samples), progress.cost) == (1, EACH + PRICE)


def test_timed_out_call_counts_at_its_maximum_cost(tmp_path: Path) -> None:
    progress, samples = collect(
        tmp_path, Scripted(lambda _, __: ModelTimeout("hung")), questions=1, n_samples=1
    )
    assert samples == []
    prompt = Template().render("text 0")
    max_cost = TOKEN_PRICES.max_cost(prompt_bytes=prompt_size(prompt), n_samples=1, max_tokens=10)
    assert progress.cost == 3 * max_cost


def test_running_calls_are_stored_when_stopped(tmp_path: Path) -> None:
    progress, samples = collect(tmp_path, model := Scripted(), questions=50, stop_after=5)
    assert progress.stopped == "requested"
    assert 5 <= len(samples) == model.calls < 50 * 4
    progress, samples = collect(tmp_path, Scripted(), questions=50)
    assert complete(samples, 50, 4)


def test_unwritable_ledger_ends_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Ledger, samples: object) -> int:
        raise DataError(f"{self.path} cannot be written: disk full ({samples!r:.3})")

    monkeypatch.setattr(Ledger, "record", full)
    with pytest.raises(DataError, match="disk full"):
        collect(tmp_path, Scripted())


def test_progress_as_text() -> None:
    progress = CollectionProgress(planned=10, done=4, new_samples=4, tokens=20, cost=3_000_000_000)
    assert str(progress).startswith("4 of 10 samples, ")
    assert ", cost 3, " in str(progress)
    assert "nan s left" in str(CollectionProgress(planned=10, done=0))
