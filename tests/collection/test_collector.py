from __future__ import annotations

import asyncio
import errno
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import pytest

from adacompute.batch.call_limits import AdaptiveLimiter, RateLimiter
from adacompute.batch.calls import BatchArm, Caller, QuestionAccount
from adacompute.batch.progress import Progress, ProgressClock
from adacompute.collection.collector import SCORER, CollectionResult, Collector, seed_of_sample
from adacompute.collection.store import CollectionStore
from adacompute.core.errors import DataError, ModelError, ModelTimeout, RateLimited, RequestRejected
from adacompute.models.calls import NO_USAGE, CallTracker
from adacompute.models.messages import Capabilities, Reply, Sample, Settings
from adacompute.models.model import CallUsage
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.templates import Template
from adacompute.spending.account import SpendingAccount
from adacompute.spending.attempts import CallBound
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.token_prices import NANO, TokenPrices
from adacompute.storage.paid_samples import (
    FAILED,
    PaidTotals,
    Payment,
    SegmentWriter,
    read_payments,
    sum_payments,
)

TOKEN_PRICES = TokenPrices(input=1.0, output=2.0)
PRICE = 50_000
EACH = (20 * 1 + 5 * 2) * 1000
"""Cost of a score and of a sample."""

COSTS = CallCosts("money", {"m": TOKEN_PRICES, SCORER: TokenPrices(call=PRICE / NANO)})
ARM = BatchArm("default", "m", Template(), Settings(max_tokens=10))


@dataclass
class Scripted:
    """A server that follows a script: ``plan`` returns an error or a number of samples.

    A timeout may be billed; other errors are refusals.
    """

    plan: Callable[[int, int], Exception | int] = lambda _, count: count
    waits: Callable[[int], float] = lambda _: 0.001
    calls: int = 0
    seeds: list[int] = field(default_factory=list)
    capabilities: Capabilities = field(default_factory=Capabilities)

    async def post_bytes(self, path: str, body: bytes, *, tracker: CallTracker) -> Reply:
        asked = json.loads(body)
        assert (path, asked["max_tokens"]) == ("chat/completions", 10)
        count, seed = asked.get("n", 1), asked["seed"]
        planned = await self._follow(path, body, count, tracker, prompt=20, completion=5)
        self.seeds.append(seed)
        if isinstance(planned, RequestRejected):
            return Reply(400, {}, str(planned))
        if isinstance(planned, Exception):
            raise planned
        samples = tuple(
            Sample(f"{seed} {i}", -0.1, 5, "stop", prompt_tokens=20, samples_per_call=planned)
            for i in range(planned)
        )
        return ParsedReply(200, {}, latency_s=0.001, samples=samples)

    async def score(self, question: str, text: str, *, tracker: CallTracker) -> float:
        assert question.startswith("text ")
        planned = await self._follow("", b"", 1, tracker, prompt=0, completion=0)
        if isinstance(planned, Exception):
            raise planned
        return len(text) / 10

    async def _follow(
        self, path: str, body: bytes, count: int, tracker: CallTracker, **tokens: int
    ) -> Exception | int:
        """Make one attempt, and report its end."""
        attempt = await tracker.start(path, body, 1)
        self.calls += 1
        planned = self.plan(self.calls, count)
        await asyncio.sleep(self.waits(self.calls))
        if isinstance(planned, Exception):
            attempt.end(None if isinstance(planned, ModelTimeout) else NO_USAGE)
        else:
            counts = {
                "prompt_tokens": tokens["prompt"],
                "completion_tokens": planned * tokens["completion"],
            }
            attempt.end(CallUsage(counts))
        return planned


Stored = list[tuple[str, Payment]]
"""Samples with the ids of their questions."""


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
    rate_limiter: RateLimiter | None = None,
    patience_s: float = 20.0,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[CollectionResult, Stored]:
    async def main() -> CollectionResult:
        store = CollectionStore(path)
        positions = store.register_questions(f"q{i}" for i in range(questions))
        asked = [(position, f"text {i}") for i, position in enumerate(positions)]

        def seed_of(question: QuestionAccount, arm: str | None, number: int) -> int:
            return seed_of_sample(0, arm or "", store.ids[question.position], number)

        def see(now: Progress) -> None:
            report(now)
            if stop_after is not None and collector.result.new_samples >= stop_after:
                collector.stop("requested")

        async with SpendingAccount(
            store.directory, COSTS, limit=limit, arms=["default"], patience_s=patience_s
        ) as account:
            caller = Caller(
                cast("Upstream", model),
                [ARM],
                account,
                limiter or AdaptiveLimiter(max_calls=8),
                samples_per_call=samples_per_call,
                patience_s=patience_s,
                seed_of=seed_of,
            )
            collector = Collector(store, "default", caller, 8, scorer, rate_limiter, report=see)
            result = await collector.collect(asked, n_samples)
            assert account.totals == sum_payments(store.segments)
            assert account.spent == account.totals.spent
            assert limit is None or account.spent <= limit
            return result

    result = asyncio.run(main())
    store = CollectionStore(path)
    return result, [
        (store.ids[position], one) for position, by_arm in store.read() for one in by_arm["default"]
    ]


def costs(path: Path) -> Mapping[str, int]:
    """What is paid, by kind."""
    return sum_payments(CollectionStore(path).segments).costs


class Busy(Scripted):
    """A server that is busy at the first attempt at every sample."""

    async def post_bytes(self, path: str, body: bytes, *, tracker: CallTracker) -> Reply:
        first = json.loads(body)["seed"] not in self.seeds
        self.plan = lambda _, count: RateLimited("busy") if first else count
        return await super().post_bytes(path, body, tracker=tracker)


def complete(samples: Stored, questions: int, n_samples: int) -> bool:
    keys = Counter((question, one.number) for question, one in samples)
    expected = {(f"q{i}", d) for i in range(questions) for d in range(n_samples)}
    return set(keys) == expected and set(keys.values()) == {1}


def texts(samples: Stored) -> set[tuple[str, int, str]]:
    return {(question, one.number, one.sample.text) for question, one in samples if one.sample}


@pytest.mark.parametrize("samples_per_call", [1, 3, 4])
def test_every_sample_is_collected_once_with_its_own_seed(
    tmp_path: Path, samples_per_call: int
) -> None:
    model = Scripted()
    result, samples = collect(tmp_path, model, samples_per_call=samples_per_call)
    assert complete(samples, 6, 4)
    assert (result.done, result.missing, result.new_samples) == (24, 0, 24)
    assert result.calls == model.calls == 6 * -(-4 // samples_per_call)
    assert len(set(model.seeds)) == len(model.seeds)  # no two calls of any two questions
    _, again = collect(tmp_path / "again", Scripted(), samples_per_call=samples_per_call)
    assert texts(again) == texts(samples)
    assert sum(one.cost for _, one in samples) == result.cost


def test_prompt_of_a_shared_call_is_paid_once(tmp_path: Path) -> None:
    single, _ = collect(tmp_path / "a", Scripted(), samples_per_call=1)
    shared, _ = collect(tmp_path / "b", Scripted(), samples_per_call=4)
    assert single.cost - shared.cost == 6 * 3 * 20 * 1000


def test_repeated_collection_samples_only_what_is_missing(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    result, _ = collect(tmp_path, idle := Scripted())
    assert (idle.calls, result.done, result.new_samples) == (0, 24, 0)
    result, samples = collect(tmp_path, more := Scripted(), n_samples=6)
    assert more.calls == 12
    assert complete(samples, 6, 6)


def test_missing_choices_are_requested_again(tmp_path: Path) -> None:
    result, samples = collect(
        tmp_path, Scripted(lambda _, count: max(1, count // 2)), samples_per_call=4
    )
    assert complete(samples, 6, 4)
    assert result.missing == 0


def test_extra_choices_are_not_stored_but_paid(tmp_path: Path) -> None:
    result, samples = collect(tmp_path, Scripted(lambda _, n: n + 2), samples_per_call=2)
    assert complete(samples, 6, 4)
    assert result.cost == sum(one.cost for _, one in samples) == 12 * (20 + 4 * 5 * 2) * 1000


def test_failures_that_pass_are_waited_for(tmp_path: Path) -> None:
    result, samples = collect(tmp_path, busy := Busy())
    assert complete(samples, 6, 4)
    assert (result.failed, result.calls, busy.calls) == ({}, 24, 48)


def test_collection_stops_when_no_call_succeeds(tmp_path: Path) -> None:
    dead = Scripted(lambda _, __: ModelError("down"))
    result, samples = collect(tmp_path, dead, questions=40, patience_s=0.6)
    assert (samples, result.missing) == ([], 160)
    assert str(result.stopped).startswith("no call succeeded for 0.6 s: down: run the same")
    assert result.cost == 0
    assert dead.calls < 160 * 3


def test_a_question_that_fails_does_not_stop_others(tmp_path: Path) -> None:
    def plan(body: bytes) -> Callable[[int, int], Exception | int]:
        return lambda _, count: ModelError("down") if b'text 3"' in body else count

    class Partly(Scripted):
        async def post_bytes(self, path: str, body: bytes, *, tracker: CallTracker) -> Reply:
            self.plan = plan(body)
            return await super().post_bytes(path, body, tracker=tracker)

    model = Partly(waits=lambda _: 0.05)
    result, samples = collect(tmp_path, model, questions=100, patience_s=0.6)
    assert {question for question, _ in samples} == {f"q{i}" for i in range(100) if i != 3}
    assert (result.missing, result.failed, result.stopped) == (4, {"down": 1}, None)
    result, samples = collect(tmp_path, again := Scripted(), questions=100)
    assert again.calls == 4
    assert complete(samples, 100, 4)


def test_retry_waits_do_not_lower_the_limit(tmp_path: Path) -> None:
    patient = Scripted(waits=lambda call: 0.03 if call % 3 == 0 else 0.001)
    limiter = AdaptiveLimiter(max_calls=8)
    collect(tmp_path, patient, questions=20, limiter=limiter)
    assert limiter.growing


def test_rejected_calls_are_final_and_stop_the_collection(tmp_path: Path) -> None:
    model = Scripted(lambda _, __: RequestRejected("no such model"))
    result, samples = collect(tmp_path, model, questions=200)
    assert samples == []
    assert result.stopped == "every call is rejected: no such model"
    assert 20 <= model.calls < 300


def test_max_cost_is_never_exceeded(tmp_path: Path) -> None:
    result, samples = collect(tmp_path, Scripted(), limit=10 * EACH)
    assert result.cost <= 10 * EACH
    assert len(samples) >= 1
    assert result.stopped is not None
    assert "may cost more" in result.stopped
    again, samples = collect(tmp_path, Scripted(), limit=24 * EACH + 1_000_000)
    assert complete(samples, 6, 4)
    assert again.missing == 0


def test_only_the_given_questions_are_counted(tmp_path: Path) -> None:
    collect(tmp_path, Scripted())
    result, _ = collect(tmp_path, Scripted(), questions=2)
    assert (result.planned, result.done, result.missing) == (8, 8, 0)


@pytest.mark.parametrize("samples_per_call", [1, 4])
def test_every_sample_is_scored_and_scores_are_paid(tmp_path: Path, samples_per_call: int) -> None:
    scorer = Scripted()
    result, samples = collect(
        tmp_path, Scripted(), samples_per_call=samples_per_call, scorer=scorer
    )
    assert complete(samples, 6, 4)
    assert [s.score for _, s in samples] == [
        len(s.sample.text) / 10 for _, s in samples if s.sample
    ]
    assert (scorer.calls, result.scored, result.unscored) == (24, 24, 0)
    assert result.cost == sum(s.cost for _, s in samples)
    assert result.cost == 24 * (5 * 2000 + PRICE) + 24 // samples_per_call * 20 * 1000
    collect(tmp_path, idle := Scripted(), samples_per_call=samples_per_call, scorer=idle)
    assert idle.calls == 0


@pytest.mark.parametrize("error", [ModelError("down"), RequestRejected("no"), RateLimited("busy")])
def test_failed_scores_are_requested_later_without_new_samples(
    tmp_path: Path, error: ModelError
) -> None:
    scorer = Scripted(lambda call, count: error if call <= 10 else count)
    result, samples = collect(tmp_path, Scripted(), scorer=scorer)
    assert complete(samples, 6, 4)
    assert (result.missing, result.unscored, result.failed) == (0, 10, {str(error): 10})
    assert sum(s.score is None for _, s in samples) == 10
    result, samples = collect(tmp_path, model := Scripted(), scorer=(again := Scripted()))
    assert (model.calls, again.calls, result.unscored) == (0, 10, 0)
    assert result.cost == 10 * PRICE
    assert sum(s.cost for _, s in samples) == 24 * (EACH + PRICE)


def test_scores_are_added_to_unscored_samples(tmp_path: Path) -> None:
    collect(tmp_path, Scripted(), n_samples=3)
    result, samples = collect(tmp_path, model := Scripted(), scorer=(scorer := Scripted()))
    assert (model.calls, scorer.calls, result.unscored) == (6, 24, 0)
    assert complete(samples, 6, 4)


def test_scorer_that_rejects_every_call_stops_the_collection(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: RequestRejected("no such path"))
    result, samples = collect(tmp_path, Scripted(), questions=200, scorer=scorer)
    assert result.stopped == "every call is rejected: no such path"
    assert 20 <= len(samples) < 300


def test_max_cost_includes_scores(tmp_path: Path) -> None:
    limit = 10 * (EACH + PRICE)
    result, samples = collect(tmp_path, Scripted(), limit=limit, scorer=Scripted())
    assert result.cost == sum(s.cost for _, s in samples) <= limit
    assert "may cost more" in str(result.stopped)
    result, samples = collect(tmp_path, Scripted(), limit=10 * limit, scorer=Scripted())
    assert (complete(samples, 6, 4), result.unscored) == (True, 0)
    assert sum(s.cost for _, s in samples) == 24 * (EACH + PRICE)


def test_timed_out_score_counts_as_paid(tmp_path: Path) -> None:
    scorer = Scripted(lambda _, __: ModelTimeout("hung"))
    result, samples = collect(tmp_path, Scripted(), questions=1, n_samples=1, scorer=scorer)
    assert (len(samples), result.cost) == (1, EACH + PRICE)
    assert costs(tmp_path) == {"sample": EACH, "failed": PRICE}


def test_timed_out_call_counts_at_its_maximum_cost(tmp_path: Path) -> None:
    hung = Scripted(lambda _, __: ModelTimeout("hung"))
    result, samples = collect(tmp_path, hung, questions=1, n_samples=1, patience_s=0.6)
    assert samples == []
    paid = list(read_payments(CollectionStore(tmp_path).segments))
    assert {(one.kind, one.number) for one in paid} == {(FAILED, 0)}
    assert len(paid) == hung.calls >= 2
    assert len({one.cost for one in paid}) == 1
    assert result.cost == sum(one.cost for one in paid)
    body = len(b'{"model": "m", "messages": [{"role": "user", "content": "text 0"}]')
    assert paid[0].cost > COSTS.max_cost(CallBound("m", body, 10))


def test_running_calls_are_stored_and_no_others_start_when_stopped(tmp_path: Path) -> None:
    result, samples = collect(tmp_path, model := Scripted(), questions=50, stop_after=5)
    assert result.stopped == "requested"
    assert 5 <= len(samples) == model.calls < 50 * 4
    assert (result.new_samples, result.failed) == (len(samples), {})
    result, samples = collect(tmp_path, Scripted(), questions=50)
    assert complete(samples, 50, 4)


def test_calls_that_wait_for_a_slot_do_not_start_when_stopped(tmp_path: Path) -> None:
    model = Scripted(waits=lambda _: 0.05)
    limiter = AdaptiveLimiter(max_calls=2)
    _, samples = collect(tmp_path, model, questions=50, stop_after=1, limiter=limiter)
    assert len(samples) == model.calls <= 6


def test_calls_that_wait_for_the_rate_limit_do_not_start_when_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    limit = RateLimiter(requests=3)
    result, samples = collect(
        tmp_path, model := Scripted(), n_samples=1, stop_after=1, rate_limiter=limit
    )
    assert time.monotonic() - started < 10, "the next may start after 20 s"
    assert result.stopped == "requested"
    assert 1 <= len(samples) == model.calls <= 3


def test_full_disk_ends_the_collection_which_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "_write", full)
        with pytest.raises(DataError, match="segments cannot be written: No space left"):
            collect(tmp_path, model := Scripted(), patience_s=0.0)
    assert model.calls > 0
    _, samples = collect(tmp_path, Scripted())
    assert complete(samples, 6, 4)
    paid = costs(tmp_path)
    assert paid["sample"] == 24 * EACH
    assert paid["lost"] >= model.calls * EACH


def test_progress_is_that_of_all_processes(tmp_path: Path) -> None:
    collect(tmp_path, Scripted(), n_samples=2)
    seen: list[Progress] = []
    collect(tmp_path, Scripted(), report=seen.append)
    last = seen[-1]
    assert (last.done, last.planned, last.samples, last.lost, last.failed) == (24, 24, 24, 0, 0)
    assert last.spent == pytest.approx(24 * EACH / NANO)
    assert str(last).startswith("24 of 24 samples, 24 samples (")
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert seen[0].done > 12


def test_progress_as_text() -> None:
    before = PaidTotals(counts={"sample": 4}, costs={"sample": 2 * NANO})
    clock = ProgressClock(before, noun="samples", planned=10, unit="money", per_unit=NANO)
    assert "left" not in str(clock.record(before, 4))
    after = PaidTotals(
        counts={"sample": 6, "failed": 2, "lost": 1},
        costs={"sample": 3 * NANO, "failed": 0, "lost": NANO // 2},
    )
    said = str(clock.record(after, 6))
    assert said.startswith("6 of 10 samples, 6 samples (")
    assert ", spent 3.5 money, lost 0.5 money, 2 failed attempts, " in said
    assert said.endswith(" s left")
