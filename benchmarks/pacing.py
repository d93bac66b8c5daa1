"""Pacing: whether the mean cost stays at the budget while the traffic changes.

Run it with ``python -m benchmarks.pacing SAMPLES.parquet --seeds 20``. For each seed, a half of the
questions is used to fit and to calibrate the policy ``sequential``. Streams of 20,000 questions are
drawn from the other half with replacement, each with a random order of its samples:

    switch           easy exams, then hard ones
    drift            the share of hard exams rises from 0 to 1
    burst            all exams; in between, 4,000 questions of the hardest one
    alternate-N      N questions of easy exams, N of hard ones, and so on

Easy are the three exams whose fitting questions cost least at the price of B = 2, hard the three
that cost most; with ``--order accuracy``, by the accuracy of one sample. The exam of a question is
the part of its id before the slash, or its ``level`` if all ids have the same.

Columns, over all seeds: the share of windows of 1,000 and of 5,000 questions whose mean cost is
within max(0.02·B, 3σ/√n) of B; the largest deviation of the overall mean, as a percentage of B, and
the number of streams where it is at most max(0.5 %, 3σ/√N); the mean and the worst difference in
accuracy from the fixed price that is right in hindsight, in points. σ is that of a question's cost
at this price. For the switch, each half has a price in hindsight; windows start at least 500
questions after the start of a half and end in it. In other streams they start after 500 questions.

``--pareto-bandit FILE`` is the ``budget_pacer.py`` of the package paretobandit. ``--tune`` compares
gains instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.states import states
from adacompute.core.votes import running_accuracy
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.frontier import CalibrationSettings
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.policies.policy import SampleMatrix
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.spending.pacing import Counters, Gains, Pacer, PriceCurve
from adacompute.stages.inputs import make_pool
from adacompute.storage.store import encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

LENGTH, BUDGETS, PERMUTATIONS = 20_000, (2.0, 4.0), 8
MAX_SAMPLES, N_EXAMS = 16, 3
SKIPPED, WINDOWS = 500, (1_000, 5_000)
BURST = (0.4, 0.6)
"""Where the burst is, as shares of the stream."""

STREAMS = ("switch", "drift", "burst", "alternate-50", "alternate-250", "alternate-1000")
MIRROR_STEP, PARETO_STEPS = 0.03, (0.003, 0.01)
"""Steps of the rivals: the best ones of ``--tune``, on the exams and on other sets."""

Decide = Callable[[], float]
Observe = Callable[[float], None]
Controller = tuple[Decide, Observe]
Maker = Callable[[PriceCurve, float], Controller]


@dataclass(frozen=True, eq=False)
class Source:
    """Questions to draw streams from, and a policy that was fitted to others.

    ``exams`` are the numbers of the exams from the easiest to the hardest. ``rows`` are the
    questions' numbers among all that were recorded.
    """

    pool: Pool
    exam: IntArray
    exams: IntArray
    policy: SequentialPolicy
    curve: PriceCurve
    rows: IntArray


@dataclass(frozen=True, eq=False)
class Stream:
    """For each question: the prices below which samples 2, 3, … are drawn, and the accuracies.

    ``limit`` falls along a row. ``accuracy`` is that of the vote after 1, 2, … samples.
    """

    limit: FloatArray
    accuracy: FloatArray

    def cost(self, price: float | FloatArray) -> IntArray:
        """Return the number of samples of each question at a price, or at one price each."""
        return np.asarray(1 + (self.limit > np.reshape(price, (-1, 1))).sum(axis=1))

    def take(self, rows: slice) -> Stream:
        """Return a part of the stream."""
        return Stream(self.limit[rows], self.accuracy[rows])

    def price_in_hindsight(self, budget: float) -> float:
        """Return the price at which the mean cost of all questions is a budget."""
        every = np.sort(self.limit, axis=None)[::-1]
        n_more = round((budget - 1) * len(self.limit))
        return float(every[min(n_more, every.size - 1)])


def load(path: Path) -> tuple[Pool, IntArray]:
    """Return the pool of a file of samples, and a number for the exam of each question."""
    table = pq.read_table(path)
    ids, levels = table["question_id"].to_pylist(), table["level"].to_pylist()
    exams = {one: one.split("/")[0] for one in ids}
    if len(set(exams.values())) == 1:
        exams = {one: level.split(" | ")[0] for one, level in zip(ids, levels, strict=True)}
    table = table.append_column("difficulty", pa.nulls(len(table), pa.string()))
    recorded = encode_samples(table)
    names = sorted(set(exams.values()))
    exam = np.array([names.index(exams[name]) for name in recorded.id])
    return make_pool(recorded), exam


def make_source(pool: Pool, exam: IntArray, seed: int, order: str) -> Source:
    """Fit and calibrate the policy on a random half of each exam; keep the other half."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(pool))
    by_exam = shuffled[np.argsort(exam[shuffled], kind="stable")]
    fitting, others = np.sort(by_exam[::2]), np.sort(by_exam[1::2])
    largest = min(MAX_SAMPLES, pool.n_samples)
    levels = tuple(n for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if n <= largest)
    own = pool.take(fitting)
    experiment = Experiment(own, levels, BUDGETS, PERMUTATIONS, seed)
    final = find_factory("sequential")(experiment, np.arange(len(own)))
    score = score_policy(experiment, "sequential")
    points: dict[float, float] = {}
    for budget in BUDGETS:
        found = calibrate(score, final, budget=budget, settings=CalibrationSettings())
        points |= {row["budget"]: row["price"] for row in found["frontier"]}
    curve = PriceCurve.of(list(points.items()))
    assert isinstance(final.policy, SequentialPolicy)
    easiness = np.bincount(own.answers.question, own.answers.correct) / own.answers.n_samples
    if order == "cost":
        easiness = -experiment.run(final, [curve.price_for(BUDGETS[0])]).cost[:, 0]
    by_exam_mean = np.bincount(exam[fitting], easiness) / np.bincount(exam[fitting])
    exams = np.argsort(-by_exam_mean)
    return Source(pool.take(others), exam[others], exams, final.policy, curve, others)


def choose_questions(
    source: Source, name: str, rng: np.random.Generator, length: int = LENGTH
) -> IntArray:
    """Draw the questions of a stream."""
    position = np.arange(length)
    wants_hard = position >= length // 2
    if name == "drift":
        wants_hard = rng.random(length) < position / length
    elif name.startswith("alternate"):
        wants_hard = position // int(name.partition("-")[2]) % 2 == 1
    n_exams = min(N_EXAMS, len(source.exams) // 2)
    easy, hard, hardest = (
        np.flatnonzero(np.isin(source.exam, exams))
        for exams in (source.exams[:n_exams], source.exams[-n_exams:], source.exams[-1:])
    )
    chosen = np.where(wants_hard, rng.choice(hard, length), rng.choice(easy, length))
    if name == "burst":
        chosen = rng.choice(len(source.exam), length)
        burst = slice(*(int(share * length) for share in BURST))
        chosen[burst] = rng.choice(hardest, burst.stop - burst.start)
    return np.asarray(chosen)


def draw_samples(
    source: Source, name: str, seed: int, length: int = LENGTH
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the questions of a stream, in ten parts, and their samples in a random order."""
    rng = np.random.default_rng([seed, STREAMS.index(name)])
    answers, last = source.pool.answers, len(source.policy.levels)
    n_samples = answers.n_samples
    for rows in np.array_split(choose_questions(source, name, rng, length), 10):
        order = rng.random((len(rows), n_samples.max()))
        order[np.arange(n_samples.max()) >= n_samples[rows, None]] = 2.0
        yield rows, answers.offsets[rows, None] + np.argsort(order, axis=1)[:, :last]


def make_stream(source: Source, name: str, seed: int, length: int = LENGTH) -> Stream:
    """Draw a stream, with a random order of samples for each of its questions."""
    pool, policy = source.pool, source.policy
    answers, last = pool.answers, len(policy.levels)
    cells = policy.prepare_features(pool.sequential_features)  # type: ignore[arg-type]
    limits, accuracies = [], []
    for rows, sample in draw_samples(source, name, seed, length):
        samples = SampleMatrix(answers.answer[sample])
        path = states().find(samples.vote_keys[:, 1:last])
        limit = policy.continue_price(path, cells[rows], pool.key[rows])
        limits.append(np.minimum.accumulate(limit, axis=1))
        accuracies.append(running_accuracy(samples.answer, answers.class_accuracy[sample]))
    return Stream(np.concatenate(limits), np.concatenate(accuracies))


def run(stream: Stream, controller: Controller, delay: int = 0) -> IntArray:
    """Return what each question of a stream costs.

    The price of a question is chosen when ``delay`` questions before it are not settled.
    """
    decide, observe = controller
    costs: list[int] = []
    for i, row in enumerate((-stream.limit).tolist()):
        if i > delay:
            observe(costs[i - delay - 1])
        costs.append(1 + bisect_left(row, -decide()))
    return np.array(costs)


def fixed(curve: PriceCurve, budget: float) -> Controller:
    """Return the calibrated price, which never changes."""
    price = curve.price_for(budget)
    return lambda: price, lambda _: None


def paced(gains: Gains, delay: int) -> Maker:
    """Return our controller."""

    def make(curve: PriceCurve, budget: float) -> Controller:
        pacer = Pacer(curve, MAX_SAMPLES, delay, gains)
        state = pacer.start(budget)

        def observe(cost: float) -> None:
            nonlocal state
            n = state.settled + 1
            state = pacer.advance(state, Counters(n, n, state.spent + cost), budget)

        return lambda: pacer.price(state), observe

    return make


def mirror(step: float) -> Maker:
    """Return dual mirror descent on the price, with the entropy as the mirror map."""

    def make(curve: PriceCurve, budget: float) -> Controller:
        price = curve.price_for(budget)

        def observe(cost: float) -> None:
            nonlocal price
            price *= math.exp(step * (cost / budget - 1))

        return lambda: price, observe

    return make


def pareto(module: Any, step: float | None) -> Maker:  # noqa: ANN401 - a module without a stub
    """Return ParetoBandit's pacer, started at the calibrated price; None keeps its own step.

    Its multiplier is the penalty of the largest cost, so a sample has 1/16 of it as its price.
    """

    def make(curve: PriceCurve, budget: float) -> Controller:
        known = {} if step is None else {"lr": step}
        pacer = module.BudgetPacer(budget, mode=module.PacingMode.SOFT, **known)
        pacer.lambda_t = curve.price_for(budget) * MAX_SAMPLES
        costs = {"sample": 1 / MAX_SAMPLES}
        return lambda: pacer.get_extra_cost_penalties(costs)["sample"], pacer.observe

    return make


@dataclass(frozen=True)
class Result:
    """How one controller did on one stream; windows are numbers of good ones and of all."""

    good: tuple[int, int]
    windows: tuple[int, int]
    deviation: float
    mean_holds: bool
    accuracy: float


def judge(
    stream: Stream, name: str, budget: float, cost: IntArray, settled: IntArray | None = None
) -> Result:
    """Compare a run with the fixed price that is right in hindsight.

    ``settled`` are the costs in the order in which they became known, if it is another one.
    """
    length, settled = len(cost), cost if settled is None else settled
    halves = [slice(0, length // 2), slice(length // 2, length)]
    good, windows, ideal, spread = [0, 0], [0, 0], [], []
    for rows in halves if name == "switch" else [slice(0, length)]:
        part = stream.take(rows)
        right = part.cost(part.price_in_hindsight(budget))
        ideal.append(part.accuracy[np.arange(len(right)), right - 1])
        sigma = float(right.std())
        spread.append(sigma)
        total = np.concatenate([[0], np.cumsum(settled[rows])])[SKIPPED:]
        for i, size in enumerate(WINDOWS):
            mean = (total[size:] - total[:-size]) / size
            bound = max(0.02 * budget, 3 * sigma / math.sqrt(size))
            good[i] += int((np.abs(mean - budget) <= bound).sum())
            windows[i] += len(mean)
    deviation = float(cost.mean()) / budget - 1
    sigma = math.sqrt(float(np.mean(np.square(spread))))
    reached = stream.accuracy[np.arange(length), cost - 1]
    return Result(
        (good[0], good[1]),
        (windows[0], windows[1]),
        deviation,
        abs(deviation) <= max(0.005, 3 * sigma / math.sqrt(length) / budget),
        100 * float((reached - np.concatenate(ideal)).mean()),
    )


def alternate_in_hindsight(stream: Stream, budget: float) -> float:
    """Return the accuracy of two prices that alternate every 1,000 questions, as ``judge`` does.

    They are right in hindsight: one kind costs as much above the budget as windows of 1,000 may,
    the other as much below. A controller that holds all windows can hardly do better.
    """
    right = stream.cost(stream.price_in_hindsight(budget))
    slack = max(0.02 * budget, 3 * float(right.std()) / math.sqrt(1_000))
    is_hard = np.arange(LENGTH) // 1_000 % 2 == 1
    cost = np.empty(LENGTH, dtype=np.int64)
    for rows in (is_hard, ~is_hard):
        part = Stream(stream.limit[rows], stream.accuracy[rows])
        sign = 1 if right[rows].mean() > budget else -1
        cost[rows] = part.cost(part.price_in_hindsight(budget + sign * slack))
    gain = stream.accuracy[np.arange(LENGTH), cost - 1]
    return 100 * float((gain - stream.accuracy[np.arange(LENGTH), right - 1]).mean())


def describe(results: list[Result]) -> str:
    """Return one line of the table."""
    good, every = (np.array([getattr(r, k) for r in results]) for k in ("good", "windows"))
    share, worst = 100 * good.sum(axis=0) / every.sum(axis=0), 100 * (good / every).min(axis=0)
    accuracy = np.array([one.accuracy for one in results])
    return (
        f"{share[0]:6.2f} ({worst[0]:5.1f}) {share[1]:6.2f} ({worst[1]:5.1f})  "
        f"{100 * max(abs(one.deviation) for one in results):6.2f}  "
        f"{sum(one.mean_holds for one in results):3d}/{len(results)}  "
        f"{accuracy.mean():+6.2f} ({accuracy.min():+.2f})"
    )


def load_module(path: Path) -> Any:  # noqa: ANN401 - a module without a stub
    """Load one file of another package, without the rest of it."""
    spec = importlib.util.spec_from_file_location("budget_pacer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def choose_controllers(options: argparse.Namespace) -> Iterator[tuple[str, Maker]]:
    """Yield the controllers to compare."""
    module = None if options.pareto_bandit is None else load_module(options.pareto_bandit)
    if not options.tune:
        yield "fixed price", fixed
        yield "pacing", paced(Gains(), options.delay)
        yield f"mirror descent {MIRROR_STEP:g}", mirror(MIRROR_STEP)
        if module is not None:
            yield "ParetoBandit", pareto(module, None)
            for step in PARETO_STEPS:
                yield f"ParetoBandit {step:g}", pareto(module, step)
        return
    for gain in (0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.03):
        yield f"pacing {gain:g}", paced(replace(Gains(), correction=gain), options.delay)
    for step in (0.001, 0.003, 0.01, 0.03):
        yield f"mirror descent {step:g}", mirror(step)
    for step in (0.05, 0.01, 0.003, 0.001, 0.0003) if module is not None else ():
        yield f"ParetoBandit {step:g}", pareto(module, step)


def main() -> None:
    """Print a table per budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--order", choices=("cost", "accuracy"), default="cost")
    parser.add_argument("--delay", type=int, default=0, help="questions in flight")
    parser.add_argument("--pareto-bandit", type=Path)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    pool, exam = load(options.samples)
    makers = dict(choose_controllers(options))
    results: dict[tuple[float, str, str], list[Result]] = {}
    limits: dict[float, list[float]] = {budget: [] for budget in BUDGETS}
    for seed in range(options.first, options.first + options.seeds):
        start = time.perf_counter()
        source = make_source(pool, exam, seed, options.order)
        for name in STREAMS:
            stream = make_stream(source, name, seed)
            for budget in BUDGETS:
                if name == "alternate-1000":
                    limits[budget].append(alternate_in_hindsight(stream, budget))
                for title, make in makers.items():
                    cost = run(stream, make(source.curve, budget), options.delay)
                    found = judge(stream, name, budget, cost)
                    results.setdefault((budget, name, title), []).append(found)
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for budget in BUDGETS:
        print(f"\nB = {budget:g}\n{'':36s} 1,000 (worst)  5,000 (worst)  mean %  holds  points")
        for name in STREAMS:
            for title in makers:
                line = describe(results[budget, name, title])
                print(f"{name:14s} {title:22s}{line}")
        print(f"alternate-1000 with two prices in hindsight: {np.mean(limits[budget]):+.2f} points")


if __name__ == "__main__":
    main()
