from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adacompute.collection.collector import Collector, Progress
from adacompute.collection.limits import AdaptiveLimiter
from adacompute.collection.plan import CollectionLevel, prompt_size
from adacompute.core.errors import DataError, ModelError, ModelTimeout, RateLimited, RequestRejected
from adacompute.models.messages import Prompt, Sample, Settings
from adacompute.models.templates import Template
from adacompute.spending.meter import Meter
from adacompute.spending.token_prices import TokenPrices
from adacompute.storage.ledger import Ledger, StoredSample

TOKEN_PRICES = TokenPrices(input=1.0, output=2.0)
PRICE = 50_000
EACH = (20 * 1 + 5 * 2) * 1000
"""What a score and a draw cost."""


@dataclass
class Scripted:
    """A model that does as it is told: ``plan`` is asked for an error or a number of draws."""

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
        told = self.plan(self.calls, count)
        if isinstance(told, Exception):
            raise told
        return [
            Sample(
                f"{seed} {i}",
                -0.1,
                5,
                "stop",
                prompt_tokens=20,
                latency_s=0.001,
                samples_per_call=told,
            )
            for i in range(told)
        ]

    async def score(self, question: str, text: str) -> float:
        assert question.startswith("text ")
        self.calls += 1
        told = self.plan(self.calls, 1)
        await asyncio.sleep(0.001)
        if isinstance(told, Exception):
            raise told
        return len(text) / 10


def collect(
    path: Path,
    model: Scripted,
    *,
    questions: int = 6,
    draws: int = 4,
    at_once: int = 1,
    limit: int | None = None,
    stop_after: int | None = None,
    scorer: Scripted | None = None,
    concurrency: AdaptiveLimiter | None = None,
) -> tuple[Progress, list[StoredSample]]:
    async def main() -> tuple[Progress, list[StoredSample]]:
        ledger = Ledger(path / "ledger.sqlite")
        mode = CollectionLevel(
            "default",
            "m",
            model,
            Template(),
            Settings(max_tokens=10),
            TOKEN_PRICES,
            draws,
            at_once,
            scorer=scorer,
            score_price=PRICE if scorer else 0,
        )
        asked = [(f"q{i}", f"text {i}") for i in range(questions)]
        meter = Meter(limit, spent=ledger.totals()["cost"])

        def report(now: Progress) -> None:
            if stop_after is not None and now.drawn >= stop_after:
                collector.stop("told to")

        places = concurrency or AdaptiveLimiter(max_calls=8)
        collector = Collector(ledger, mode, asked, meter, places, report=report)
        try:
            progress = await collector.run()
            return progress, list(ledger.samples(1))
        finally:
            ledger.close()

    return asyncio.run(main())


class Busy(Scripted):
    """A model that refuses the first attempt at every draw."""

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
        first = seed not in self.seeds
        drawn = await super().call(prompt, settings, count=count, seed=seed)
        if first:
            raise RateLimited("busy")
        return drawn


def complete(samples: list[StoredSample], questions: int, draws: int) -> bool:
    keys = Counter((sample.question, sample.sample) for sample in samples)
    wanted = {(f"q{i}", d) for i in range(questions) for d in range(draws)}
    return set(keys) == wanted and set(keys.values()) == {1}


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_everything_is_drawn_once_with_seeds_of_its_own(tmp_path: Path, at_once: int) -> None:
    model = Scripted()
    progress, samples = collect(tmp_path, model, at_once=at_once)
    assert complete(samples, 6, 4)
    assert (progress.done, progress.missing, progress.drawn) == (24, 0, 24)
    assert progress.calls == model.calls == 6 * -(-4 // at_once)
    assert len(set(model.seeds)) == len(model.seeds)  # no two calls of any two questions
    _, again = collect(tmp_path / "again", Scripted(), at_once=at_once)
    assert {(s.question, s.sample, s.text) for s in again} == {
        (s.question, s.sample, s.text) for s in samples
    }
    assert sum(sample.cost for sample in samples) == progress.cost


def test_a_prompt_shared_by_several_draws_is_paid_once(tmp_path: Path) -> None:
    single, _ = collect(tmp_path / "a", Scripted(), at_once=1)
    shared, _ = collect(tmp_path / "b", Scripted(), at_once=4)
    assert single.cost - shared.cost == 6 * 3 * 20 * 1000


def test_a_second_run_asks_for_nothing_and_a_third_for_more_draws(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    idle = Scripted()
    progress, _ = collect(tmp_path, idle)
    assert (idle.calls, progress.done, progress.drawn) == (0, 24, 0)
    progress, samples = collect(tmp_path, more := Scripted(), draws=6)
    assert more.calls == 12
    assert complete(samples, 6, 6)


def test_fewer_choices_than_asked_are_topped_up(tmp_path: Path) -> None:
    progress, samples = collect(tmp_path, Scripted(lambda _, count: max(1, count // 2)), at_once=4)
    assert complete(samples, 6, 4)
    assert progress.missing == 0


def test_more_choices_than_asked_are_not_stored_twice(tmp_path: Path) -> None:
    _, samples = collect(tmp_path, Scripted(lambda _, count: count + 2), at_once=2)
    assert complete(samples, 6, 4)


def test_what_fails_for_now_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    busy = Busy()
    progress, samples = collect(tmp_path / "a", busy)
    assert complete(samples, 6, 4)
    assert (progress.failed, busy.calls) == ({"busy": 24}, 48)
    dead = Scripted(lambda _, __: ModelError("down"))
    progress, samples = collect(tmp_path / "b", dead, questions=2, draws=2)
    assert (samples, progress.missing) == ([], 4)
    assert dead.calls == 4 * 3


def test_waits_between_attempts_are_no_sign_of_a_slow_server(tmp_path: Path) -> None:
    patient = Scripted(waits=lambda call: 0.03 if call % 3 == 0 else 0.001)
    places = AdaptiveLimiter(max_calls=8)
    collect(tmp_path, patient, questions=20, concurrency=places)
    assert places.growing


def test_a_refusal_is_final_and_many_end_the_collection(tmp_path: Path) -> None:
    model = Scripted(lambda _, __: RequestRejected("no such model"))
    progress, samples = collect(tmp_path, model, questions=100)
    assert samples == []
    assert progress.stopped == "every call is refused: no such model"
    assert 20 <= model.calls < 60


def test_the_limit_on_cost_is_never_exceeded_and_all_below_it_is_used(tmp_path: Path) -> None:
    progress, samples = collect(tmp_path, Scripted(), limit=10 * EACH)
    assert progress.cost <= 10 * EACH
    assert 5 <= len(samples) <= 10
    assert progress.stopped is not None
    assert "may cost more" in progress.stopped
    again, samples = collect(tmp_path, Scripted(), limit=24 * EACH + 100_000)
    assert complete(samples, 6, 4)
    assert again.missing == 0


def test_fewer_questions_than_were_collected_before_are_counted_alone(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    progress, _ = collect(tmp_path, Scripted(), questions=2)
    assert (progress.wanted, progress.done, progress.missing) == (8, 8, 0)


@pytest.mark.parametrize("at_once", [1, 4])
def test_every_sample_is_scored_and_the_scores_are_paid(tmp_path: Path, at_once: int) -> None:
    scorer = Scripted()
    progress, samples = collect(tmp_path, Scripted(), at_once=at_once, scorer=scorer)
    assert complete(samples, 6, 4)
    assert [s.score for s in samples] == [len(s.text) / 10 for s in samples]
    assert (scorer.calls, progress.scored, progress.unscored) == (24, 24, 0)
    assert progress.cost == sum(s.cost for s in samples)
    assert progress.cost == 24 * (5 * 2000 + PRICE) + 24 // at_once * 20 * 1000
    collect(tmp_path, idle := Scripted(), at_once=at_once, scorer=idle)
    assert idle.calls == 0


@pytest.mark.parametrize("error", [ModelError("down"), RequestRejected("no"), RateLimited("busy")])
def test_a_scorer_that_fails_loses_no_sample_and_only_scores_are_asked_for_later(
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


def test_scores_are_added_to_samples_that_were_collected_without(tmp_path: Path) -> None:
    collect(tmp_path, Scripted(), draws=3)
    progress, samples = collect(tmp_path, model := Scripted(), scorer=(scorer := Scripted()))
    assert (model.calls, scorer.calls, progress.unscored) == (6, 24, 0)
    assert complete(samples, 6, 4)


def test_a_scorer_that_refuses_everything_ends_the_collection(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: RequestRejected("no such path"))
    progress, samples = collect(tmp_path, Scripted(), questions=100, scorer=scorer)
    assert progress.stopped == "every call is refused: no such path"
    assert 20 <= len(samples) < 60


def test_the_limit_on_cost_holds_for_scores_and_none_is_drawn_that_cannot_be_scored(
    tmp_path: Path,
) -> None:
    limit = 10 * (EACH + PRICE)
    progress, samples = collect(tmp_path, Scripted(), limit=limit, scorer=Scripted())
    assert progress.cost == sum(s.cost for s in samples) <= limit
    assert progress.unscored == 0
    assert 5 <= len(samples) <= 10
    assert "may cost more" in str(progress.stopped)


def test_a_score_that_hung_is_counted_as_paid(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: ModelTimeout("hung"))
    progress, samples = collect(tmp_path, Scripted(), questions=1, draws=1, scorer=scorer)
    assert (len(samples), progress.cost) == (1, EACH + PRICE)


def test_a_call_that_hung_counts_as_its_worst_case(tmp_path: Path) -> None:
    progress, samples = collect(
        tmp_path, Scripted(lambda _, __: ModelTimeout("hung")), questions=1, draws=1
    )
    assert samples == []
    prompt = Template().render("text 0")
    most = TOKEN_PRICES.max_cost(prompt_bytes=prompt_size(prompt), n_samples=1, max_tokens=10)
    assert progress.cost == 3 * most


def test_when_stopped_what_is_under_way_is_kept(tmp_path: Path) -> None:
    progress, samples = collect(tmp_path, model := Scripted(), questions=50, stop_after=5)
    assert progress.stopped == "told to"
    assert 5 <= len(samples) == model.calls < 50 * 4
    progress, samples = collect(tmp_path, Scripted(), questions=50)
    assert complete(samples, 50, 4)


def test_a_ledger_that_cannot_be_written_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Ledger, samples: object) -> int:
        raise DataError(f"{self.path} cannot be written: disk full ({samples!r:.3})")

    monkeypatch.setattr(Ledger, "record", full)
    with pytest.raises(DataError, match="disk full"):
        collect(tmp_path, Scripted())


def test_progress_says_how_far_it_is() -> None:
    progress = Progress(wanted=10, done=4, drawn=4, tokens=20, cost=3_000_000_000)
    assert str(progress).startswith("4 of 10 samples, ")
    assert ", cost 3, " in str(progress)
    assert "nan s left" in str(Progress(wanted=10, done=0))
