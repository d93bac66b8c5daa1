"""Two models: a strong model as a last resort, against routing and either model alone.

Run it with ``python benchmarks/two_models.py SAMPLES [CHEAP [STRONG [RATIO]]]``. SAMPLES is a
directory of recorded samples; CHEAP and STRONG are two models of ``mcqa-comprehensive100__*``. A
token of the strong model costs RATIO times one of the cheap model, or its list price if RATIO is
not given. Four characters count as a token. Every question is held out once per repeat, and
policies are compared at equal cost in money:

    cheap         the cheap model alone, with the sequential policy
    strong        the strong model alone, with a vote of some samples
    random        the best random mixture of uniform levels of both models
    router        a value router on the question's text, over the same levels
    agreement     k cheap samples, and the strong model if fewer than t of them agree
    resort        the sequential policy with the strong model as its last level
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.types import Level, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import POLICY_FACTORIES
from adacompute.evaluation.held_out import replay_splits, split_folds
from adacompute.evaluation.pool import Pool, Resort, assign_folds
from adacompute.policies.price_schedule import fit_price_schedule
from adacompute.policies.router import fit_value_router
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run, encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, KeyArray

FILE = "mcqa-comprehensive100__{}.parquet"
TOKEN_PRICES = {
    "gpt-3.5-turbo": (0.5, 1.5),
    "mistral-large": (4.0, 12.0),
    "gpt-4": (30.0, 60.0),
    "claude-3-opus": (15.0, 75.0),
}
"""Input and output, in dollars per million tokens, as listed in mid 2024 (when sampled)."""

CHARS_PER_TOKEN, PERMUTATIONS, FOLDS, REPEATS, RESAMPLES = 4, 40, 5, 4, 2000
N_TARGETS = 48
CHEAP_LEVELS, STRONG_LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), (1, 3, 5)
AGREEMENT_SAMPLES, MAX_AGREEMENT = (1, 2, 3, 4, 5, 6, 8), 8
BUDGET_SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)
"""Budgets: shares of the way from the cost of one cheap sample to that of one strong sample."""

STRONG_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Settings:
    """Costs and accuracies of every setting of a rule on every question, (N, settings)."""

    cost: FloatArray
    accuracy: FloatArray


CostCurve = tuple["FloatArray", "FloatArray"]
"""Cost and accuracy of each question at each target cost, (N, targets)."""


def read_model(samples: Path, model: str, prices: tuple[float, float]) -> Pool:
    """Read the samples of a model with their cost in money per thousand questions."""
    with TemporaryDirectory() as directory:
        import_samples(samples / FILE.format(model), Path(directory, "run"))
        run = Run(Path(directory, "run"))
        pool, recorded = read_pool(run), encode_samples(run.samples())
    chars = recorded.column("completion_chars")
    completion = np.where(np.isnan(chars), np.nanmean(chars), chars) / CHARS_PER_TOKEN
    prompt = np.array([len(text or "") for text in recorded.text]) / CHARS_PER_TOKEN
    cost = (completion * prices[1] + prompt[pool.answers.question] * prices[0]) / 1e3
    return replace(pool, sample_cost=cost)


def join(cheap: Pool, strong: Pool, model: str) -> Pool:
    """Return the cheap model's pool with the strong model as its last resort."""
    if not np.array_equal(cheap.group, strong.group):
        raise SystemExit("the two sets do not have the same questions in the same order")
    level = Level(name=model, n_samples=1, model=model)
    return replace(cheap, resort=Resort(level, strong.answers, strong.sample_cost))


def uniform_settings(cheap: Pool, strong: Pool) -> Settings:
    """Return every uniform level of both models."""
    parts = [(cheap, CHEAP_LEVELS), (strong, STRONG_LEVELS)]
    utility = [
        estimate(pool.answers, levels, standard_errors=False).utility for pool, levels in parts
    ]
    cost = [pool.mean_sample_cost()[:, None] * np.array(levels) for pool, levels in parts]
    return Settings(np.hstack(cost), np.hstack(utility))


def agreement_settings(experiment: Experiment) -> Settings:
    """Return the settings of the rule that uses the strong model if too few samples agree."""
    pool, tally = experiment.pool, experiment.replay.samples.tally
    assert pool.resort is not None
    vote, shape = experiment.replay._accuracy, (len(pool), experiment.n_permutations)  # noqa: SLF001
    cheap_cost, resort = pool.mean_sample_cost(), pool.resort
    cost, accuracy = [], []
    for n_samples in AGREEMENT_SAMPLES:
        for min_votes in range(1, min(n_samples, MAX_AGREEMENT) + 2):
            resorted = (tally.leading[:, n_samples] < min_votes).reshape(shape)
            cheap_accuracy = vote[:, n_samples].reshape(shape)
            cost.append(cheap_cost * n_samples + resort.cost * resorted.mean(axis=1))
            mixed = np.where(resorted, resort.utility[:, None], cheap_accuracy)
            accuracy.append(mixed.mean(axis=1))
    return Settings(np.stack(cost, axis=1), np.stack(accuracy, axis=1))


def mix_settings(
    settings: Settings, train: IntArray, held_out: IntArray, targets: FloatArray
) -> CostCurve:
    """Mix the settings on the training questions' hull so that they cost the targets there."""
    cost, accuracy = settings.cost[train].mean(axis=0), settings.accuracy[train].mean(axis=0)
    kept, _ = fit_price_schedule(cost, accuracy)
    order = np.argsort(cost[kept])
    return interpolate(
        cost[kept][order],
        settings.cost[held_out][:, kept][:, order],
        settings.accuracy[held_out][:, kept][:, order],
        targets,
    )


def interpolate(
    training_cost: FloatArray, cost: FloatArray, accuracy: FloatArray, targets: FloatArray
) -> CostCurve:
    """Interpolate columns, (N, points), at target costs on the training questions."""
    position = np.interp(targets, training_cost, np.arange(len(training_cost)))
    last = len(training_cost) - 1
    lower = np.minimum(position.astype(int), last)
    upper, share = np.minimum(lower + 1, last), position - lower
    return tuple(v[:, lower] * (1 - share) + v[:, upper] * share for v in (cost, accuracy))


def route(
    settings: Settings, pool: Pool, train: IntArray, held_out: IntArray, targets: FloatArray
) -> CostCurve:
    """Score a value router on the text at all of its prices."""
    levels = tuple(Level(str(i), i + 1) for i in range(settings.cost.shape[1]))
    level_cost = settings.cost[train].mean(axis=0)
    table = UtilityTable(settings.accuracy[train], level_cost)
    policy = fit_value_router(pool.features[train], table, levels)
    predicted, rows = policy.model.predict(pool.features), np.arange(len(pool))
    cost, accuracy, training_cost = [], [], []
    for price in np.geomspace(1.0 / level_cost.min(), 1e-3 / level_cost.max(), N_TARGETS):
        choice = (predicted - price * level_cost).argmax(axis=1)
        cost.append(settings.cost[rows, choice][held_out])
        accuracy.append(settings.accuracy[rows, choice][held_out])
        training_cost.append(settings.cost[rows, choice][train].mean())
    rising = np.maximum.accumulate(training_cost)
    return interpolate(rising, np.stack(cost, axis=1), np.stack(accuracy, axis=1), targets)


def run_sequential(
    experiment: Experiment, train: IntArray, held_out: IntArray, targets: FloatArray
) -> tuple[CostCurve, FloatArray]:
    """Score the sequential policy at its prices; also return the share of questions resorted on."""
    factory = POLICY_FACTORIES["sequential"]
    (fold,) = replay_splits(experiment, factory, [(train, held_out)])
    training_cost, result = fold.training_cost, fold.result
    curve = interpolate(training_cost, result.cost, result.accuracy, targets)
    return curve, interpolate(training_cost, result.cost, result.resorted, targets)[1]


def score(
    cheap: Pool, strong: Pool, both: Pool, single_costs: FloatArray
) -> tuple[dict[str, CostCurve], FloatArray]:
    """Score everything on held-out questions; also return the shares resorted on."""
    low, high = single_costs.tolist()
    targets = np.geomspace(low, high * max(STRONG_LEVELS), N_TARGETS)
    alone, joined = (Experiment(p, CHEAP_LEVELS, (low,), PERMUTATIONS, 0) for p in (cheap, both))
    uniform, agreement = uniform_settings(cheap, strong), agreement_settings(joined)
    columns = slice(len(CHEAP_LEVELS), None)
    only_strong = Settings(uniform.cost[:, columns], uniform.accuracy[:, columns])
    names = ("cheap", "strong", "random", "router", "agreement", "resort")
    totals = {name: np.zeros((2, len(cheap), N_TARGETS)) for name in names}
    shares = np.zeros((len(cheap), N_TARGETS))
    for repeat in range(REPEATS):
        for train, held_out in split_folds(assign_folds(cheap.group, FOLDS, seed=repeat)):
            split = train, held_out, targets
            totals["cheap"][:, held_out] += run_sequential(alone, *split)[0]
            totals["strong"][:, held_out] += mix_settings(only_strong, *split)
            totals["random"][:, held_out] += mix_settings(uniform, *split)
            totals["router"][:, held_out] += route(uniform, cheap, *split)
            totals["agreement"][:, held_out] += mix_settings(agreement, *split)
            curve, share = run_sequential(joined, *split)
            totals["resort"][:, held_out] += curve
            shares[held_out] += share
    curves = {name: (total[0] / REPEATS, total[1] / REPEATS) for name, total in totals.items()}
    return curves, shares / REPEATS


def bootstrap_weights(group: KeyArray) -> FloatArray:
    """Return how often each question is drawn: once, then in each resampling of the texts."""
    _, inverse = np.unique(group, return_inverse=True)
    size = int(inverse.max()) + 1
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return np.concatenate([np.ones((1, len(group))), counts[:, inverse]])


def read_curve(curve: CostCurve, budget: float, weights: FloatArray) -> FloatArray:
    """Return the accuracy at a budget: the estimate, then that of each resampling."""
    total = weights.sum(axis=1, keepdims=True)
    cost, accuracy = (weights @ column / total for column in curve)
    cost = np.maximum.accumulate(cost, axis=1)
    return np.array([np.interp(budget, c, a) for c, a in zip(cost, accuracy, strict=True)])


def format_difference(difference: FloatArray) -> str:
    """Format a difference in points with the interval of the resampled ones."""
    low, high = np.quantile(difference[1:], [0.025, 0.975])
    return f"{difference[0]:+.2f} [{low:+.2f}, {high:+.2f}]"


def report(
    curves: dict[str, CostCurve], shares: FloatArray, single_costs: FloatArray, weights: FloatArray
) -> None:
    """Print accuracy by budget, and the gain of the last resort over each rival."""
    low, high = single_costs.tolist()
    budgets = low + np.array(BUDGET_SHARES) * (high - low)
    print(
        "| policy |", " | ".join(f"{b / low:.1f}" for b in budgets), "| resort minus this, mean |"
    )
    ours = [read_curve(curves["resort"], b, weights) for b in budgets]
    for name, curve in curves.items():
        if name == "strong":
            continue  # it costs more than any of these budgets
        values = [read_curve(curve, b, weights) for b in budgets]
        difference = 100 * np.mean([o - v for o, v in zip(ours, values, strict=True)], axis=0)
        cells = " | ".join(f"{100 * v[0]:.1f}" for v in values)
        print(f"| {name} | {cells} | {format_difference(difference)} |")
    cost = curves["resort"][0].mean(axis=0)
    resorted = [f"{100 * np.interp(b, cost, shares.mean(axis=0)):.0f} %" for b in budgets]
    print("| questions resorted on |", " | ".join(resorted), "| |")
    strong = read_curve(curves["strong"], high, weights)
    for share in STRONG_SHARES:
        difference = 100 * (read_curve(curves["resort"], share * high, weights) - strong)
        print(
            f"resort at {share:.0%} of the cost of a strong sample, minus one strong sample "
            f"({100 * strong[0]:.1f}): {format_difference(difference)}"
        )


def main() -> None:
    """Read two models and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    parser.add_argument("cheap", nargs="?", default="gpt-3.5-turbo")
    parser.add_argument("strong", nargs="?", default="claude-3-opus")
    parser.add_argument("ratio", nargs="?", type=float, help="default: list prices")
    options = parser.parse_args()
    prices = TOKEN_PRICES[options.cheap]
    cheap = read_model(options.samples, options.cheap, prices)
    if options.ratio:
        strong_prices = options.ratio * prices[0], options.ratio * prices[1]
    else:
        strong_prices = TOKEN_PRICES[options.strong]
    strong = read_model(options.samples, options.strong, strong_prices)
    single_costs = np.array([pool.mean_sample_cost().mean() for pool in (cheap, strong)])
    curves, shares = score(cheap, strong, join(cheap, strong, options.strong), single_costs)
    print(
        f"{len(cheap)} questions; a sample of {options.strong} costs as much as "
        f"{single_costs[1] / single_costs[0]:.0f} of {options.cheap}. "
        f"Accuracy at budgets in samples of {options.cheap}:"
    )
    report(curves, shares, single_costs, bootstrap_weights(cheap.group))


if __name__ == "__main__":
    main()
