"""Two models: a strong one as a last resort, against routing and either model alone.

Run it with ``python benchmarks/two_models.py SAMPLES [CHEAP [STRONG [RATIO]]]``: a directory of
recorded samples, two models of ``mcqa-comprehensive100__*``, and how many times as much a token of
the strong one costs; without it, list prices are taken. A token counts as four characters. Every
question is held out once in each repeat; rivals are compared at equal money.

    cheap         the cheap model alone: the sequential policy
    strong        the strong model alone, some samples and a vote
    random        the best random mixture of uniform levels of both models
    router        a value router on the question's text over the same levels
    agreement     k cheap draws, and the strong model where fewer than t of them agree
    resort        the sequential policy with the strong model as its last level
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.types import Level, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.curves import N_TARGETS, replay_fitted, split_folds
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment
from adacompute.evaluation.intervals import bootstrap_weights
from adacompute.evaluation.pool import Pool, Resort, assign_folds
from adacompute.policies.price_schedule import fit_price_schedule
from adacompute.policies.router import fit_value_router
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.core.types import FloatArray, IntArray

SET = "mcqa-comprehensive100__{}.parquet"
LIST = {
    "gpt-3.5-turbo": (0.5, 1.5),
    "mistral-large": (4.0, 12.0),
    "gpt-4": (30.0, 60.0),
    "claude-3-opus": (15.0, 75.0),
}
"""Input and output, dollars a million tokens, as listed when the samples were drawn (mid 2024)."""

CHARACTERS, ORDERS, FOLDS, REPEATS, RESAMPLINGS = 4, 40, 5, 4, 2000
CHEAP_LEVELS, STRONG_LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), (1, 3, 5)
DRAWN, AGREE = (1, 2, 3, 4, 5, 6, 8), 8
SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)
"""Budgets: so much of the way from one cheap draw to one strong draw."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Costs and accuracies of every setting of one kind on every question, (N, settings)."""

    cost: FloatArray
    accuracy: FloatArray


Line = tuple["FloatArray", "FloatArray"]
"""Cost and accuracy of each question along the aims."""


def read_model(samples: Path, model: str, ratio: float | None, cheap: str) -> Pool:
    """Read one model's samples, each paid by list price, or by a multiple of the cheap one's."""
    with TemporaryDirectory() as place:
        import_samples(samples / SET.format(model), Path(place, "run"))
        run = Run(Path(place, "run"))
        pool, recorded = read_pool(run), encode_samples(run.samples())
    sent, drawn = LIST[model]
    if ratio is not None and model != cheap:
        sent, drawn = (ratio * price for price in LIST[cheap])
    length = recorded.column("completion_chars")
    length = np.where(np.isnan(length), np.nanmean(length), length) / CHARACTERS
    prompt = np.array([len(text or "") for text in recorded.text]) / CHARACTERS
    cost = (length * drawn + prompt[pool.answers.question] * sent) / 1e3
    return replace(pool, sample_cost=cost)


def join(cheap: Pool, strong: Pool, model: str) -> Pool:
    """The cheap model's pool with the other as its last resort; questions are the same."""
    if not np.array_equal(cheap.group, strong.group):
        raise SystemExit("the two sets are not of the same questions in the same order")
    level = Level(name=model, n_samples=1, model=model)
    return replace(cheap, resort=Resort(level, strong.answers, strong.sample_cost))


def uniform(cheap: Pool, strong: Pool) -> Setting:
    """Every uniform level of both models."""
    parts = [(cheap, CHEAP_LEVELS), (strong, STRONG_LEVELS)]
    worth = [
        estimate(pool.answers, levels, standard_errors=False).utility for pool, levels in parts
    ]
    cost = [pool.mean_sample_cost()[:, None] * np.array(levels) for pool, levels in parts]
    return Setting(np.hstack(cost), np.hstack(worth))


def agreement(experiment: Experiment) -> Setting:
    """Settings of the rule that asks the strong model where too few cheap draws agree."""
    pool, tally = experiment.pool, experiment.replay.samples.tally
    assert pool.resort is not None
    value, shape = experiment.replay._accuracy, (len(pool), experiment.n_permutations)  # noqa: SLF001
    each, extra, right = pool.mean_sample_cost(), pool.resort.cost, pool.resort.utility
    cost, accuracy = [], []
    for drawn in DRAWN:
        for least in range(1, min(drawn, AGREE) + 2):
            asks = (tally.leading[:, drawn] < least).reshape(shape)
            kept = value[:, drawn].reshape(shape)
            cost.append(each * drawn + extra * asks.mean(axis=1))
            accuracy.append(np.where(asks, right[:, None], kept).mean(axis=1))
    return Setting(np.stack(cost, axis=1), np.stack(accuracy, axis=1))


def along(setting: Setting, train: IntArray, held: IntArray, aims: FloatArray) -> Line:
    """Hull of the settings on training questions, mixed to spend what is aimed at."""
    spent, right = setting.cost[train].mean(axis=0), setting.accuracy[train].mean(axis=0)
    kept, _ = fit_price_schedule(spent, right)
    order = np.argsort(spent[kept])
    return _interpolate(
        spent[kept][order],
        setting.cost[held][:, kept][:, order],
        setting.accuracy[held][:, kept][:, order],
        aims,
    )


def _interpolate(spent: FloatArray, cost: FloatArray, right: FloatArray, aims: FloatArray) -> Line:
    place = np.interp(aims, spent, np.arange(len(spent)))
    first = np.minimum(place.astype(int), len(spent) - 1)
    after, share = np.minimum(first + 1, len(spent) - 1), place - first
    return tuple(v[:, first] * (1 - share) + v[:, after] * share for v in (cost, right))


def route(setting: Setting, pool: Pool, train: IntArray, held: IntArray, aims: FloatArray) -> Line:
    """A value router on the text, its price turned along."""
    levels = tuple(Level(str(i), i + 1) for i in range(setting.cost.shape[1]))
    table = UtilityTable(setting.accuracy[train], setting.cost[train].mean(axis=0))
    policy = fit_value_router(pool.features[train], table, levels)
    guess, mean = policy.model.predict(pool.features), setting.cost[train].mean(axis=0)
    prices = np.geomspace(1.0 / mean.min(), 1e-3 / mean.max(), N_TARGETS)
    cost, right, spent = [], [], []
    for price in prices:
        choice = (guess - price * mean).argmax(axis=1)
        rows = np.arange(len(choice))
        cost.append(setting.cost[rows, choice][held])
        right.append(setting.accuracy[rows, choice][held])
        spent.append(setting.cost[rows, choice][train].mean())
    rising = np.maximum.accumulate(spent)
    return _interpolate(rising, np.stack(cost, axis=1), np.stack(right, axis=1), aims)


def follow(
    experiment: Experiment, train: IntArray, held: IntArray, aims: FloatArray
) -> tuple[Line, FloatArray]:
    """The sequential policy along its prices, and the share of questions that it resorts on."""
    fitted = POLICY_FACTORIES["sequential"](experiment, train)
    told = experiment.sample_cost(train)
    runs = [replay_fitted(experiment, fitted, price, told) for price in fitted.prices]
    spent = np.maximum.accumulate([run.cost[train].mean() for run in runs])
    columns = [
        np.stack([getattr(r, n)[held] for r in runs], axis=1)
        for n in ("cost", "accuracy", "resorted")
    ]
    line = _interpolate(spent, columns[0], columns[1], aims)
    return line, _interpolate(spent, columns[0], columns[2], aims)[1]


def score(cheap: Pool, strong: Pool, both: Pool) -> tuple[dict[str, Line], FloatArray, FloatArray]:
    """Score everything on held-out questions, averaged over repeats, along aims in money."""
    low, high = float(cheap.mean_sample_cost().mean()), float(strong.mean_sample_cost().mean())
    aims = np.geomspace(low, high * max(STRONG_LEVELS), N_TARGETS)
    alone, joined = (Experiment(p, CHEAP_LEVELS, (low,), ORDERS, 0) for p in (cheap, both))
    every, agreeing = uniform(cheap, strong), agreement(joined)
    mine = slice(len(CHEAP_LEVELS), None)
    only = Setting(every.cost[:, mine], every.accuracy[:, mine])
    names = ("cheap", "strong", "random", "router", "agreement", "resort")
    lines = {name: np.zeros((2, len(cheap), N_TARGETS)) for name in names}
    shares = np.zeros((len(cheap), N_TARGETS))
    for repeat in range(REPEATS):
        for train, held in split_folds(assign_folds(cheap.group, FOLDS, seed=repeat)):
            lines["cheap"][:, held] += follow(alone, train, held, aims)[0]
            lines["strong"][:, held] += along(only, train, held, aims)
            lines["random"][:, held] += along(every, train, held, aims)
            lines["router"][:, held] += route(every, cheap, train, held, aims)
            lines["agreement"][:, held] += along(agreeing, train, held, aims)
            line, share = follow(joined, train, held, aims)
            lines["resort"][:, held] += line
            shares[held] += share
    found = {name: (line[0] / REPEATS, line[1] / REPEATS) for name, line in lines.items()}
    return found, shares / REPEATS, np.array([low, high])


def read(line: Line, budget: float, weights: FloatArray) -> FloatArray:
    """Accuracy at a budget: as it is, and in each resampling."""
    total = weights.sum(axis=1, keepdims=True)
    cost, right = (weights @ column / total for column in line)
    cost = np.maximum.accumulate(cost, axis=1)
    return np.array([np.interp(budget, c, r) for c, r in zip(cost, right, strict=True)])


def report(
    lines: dict[str, Line], shares: FloatArray, ends: FloatArray, weights: FloatArray
) -> None:
    """Print accuracy by budget, and what the last resort gains on each rival."""
    budgets = ends[0] + np.array(SHARES) * (ends[1] - ends[0])
    head = " | ".join(f"{b / ends[0]:.1f}" for b in budgets)
    print(f"| policy | {head} | resort less this, mean |")
    ours = [read(lines["resort"], b, weights) for b in budgets]
    for name, line in lines.items():
        if name == "strong":
            continue  # it costs more than any of these budgets
        mine = [read(line, b, weights) for b in budgets]
        gap = 100 * np.mean([o - m for o, m in zip(ours, mine, strict=True)], axis=0)
        low, high = np.quantile(gap[1:], [0.025, 0.975])
        cells = " | ".join(f"{100 * m[0]:.1f}" for m in mine)
        print(f"| {name} | {cells} | {gap[0]:+.2f} [{low:+.2f}, {high:+.2f}] |")
    cost = lines["resort"][0].mean(axis=0)
    told = [f"{100 * np.interp(b, cost, shares.mean(axis=0)):.0f} %" for b in budgets]
    print("| questions resorted on |", " | ".join(told), "| |")
    strong = read(lines["strong"], ends[1], weights)
    for part in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        gap = 100 * (read(lines["resort"], part * ends[1], weights) - strong)
        low, high = np.quantile(gap[1:], [0.025, 0.975])
        less = f"{gap[0]:+.2f} [{low:+.2f}, {high:+.2f}]"
        print(f"at {part:.0%} of a strong draw's money, to its {100 * strong[0]:.1f}: {less}")


def main() -> None:
    """Read two models, and compare."""
    given = dict(enumerate(sys.argv))
    samples, cheap_name = Path(sys.argv[1]), given.get(2, "gpt-3.5-turbo")
    strong_name, ratio = given.get(3, "claude-3-opus"), given.get(4)
    priced: Callable[[str], Pool] = lambda model: read_model(  # noqa: E731
        samples, model, float(ratio) if ratio else None, cheap_name
    )
    cheap, strong = priced(cheap_name), priced(strong_name)
    both = join(cheap, strong, strong_name)
    lines, shares, ends = score(cheap, strong, both)
    print(
        f"{len(cheap)} questions; a draw of {strong_name} costs {ends[1] / ends[0]:.0f} of "
        f"{cheap_name}. Accuracy at budgets in draws of {cheap_name}:"
    )
    report(lines, shares, ends, bootstrap_weights(cheap.group, RESAMPLINGS, seed=0))


if __name__ == "__main__":
    main()
