"""Surface: accuracy by budget and number of rounds, and the best policy by the cost of a round.

Run it with ``python -m benchmarks.surface SAMPLES``. SAMPLES is a directory of recorded samples. It
uses the five exams on which the policies were designed, counts four characters as a token, and
scores every policy on held-out questions at equal cost in money, as ``adacompute evaluate`` does.
It prints two tables:

    surface    accuracy and rounds of ``sequential``, by maximum number of rounds and budget
    calls      accuracy and rounds of every policy, by the length of the prompt, whether n samples
               are one call or n calls, and whether prompts are cached
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import POLICY_FACTORIES
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.held_out import CurvePoint, score_held_out
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.spending.token_prices import TokenPrices
from adacompute.stages.inputs import read_pool
from adacompute.stages.research.import_samples import import_samples
from adacompute.storage.store import Run, encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

FILE = "mcqa10x100__gpt-3.5-turbo.parquet"
EXAMS = ("aqua-rat", "hellaswag", "lsat-ar", "lsat-rc", "sat-en")
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
CHARS_PER_TOKEN = 4

TOKEN_PRICES = TokenPrices(input=0.15, cached_input=0.075, output=0.6)
"""Per million tokens, as listed for gpt-4o-mini; the ratio of input to output is common."""

CHEAP_CACHE = replace(TOKEN_PRICES, cached_input=0.015)
"""Cached prompts at a tenth of the price, as other providers list."""

BUDGET_SAMPLES = (2, 3, 4, 6)
"""Budgets: the cost of this many samples in one call."""

SURFACE_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
FREE_ROUNDS = "sequential, free rounds"
POLICIES = ("mixture", "early-stopping", "adaptive-consistency", FREE_ROUNDS, "sequential")


@dataclass(frozen=True)
class CallPricing:
    """How calls are made and paid.

    ``prompt_ratio`` is the length of the prompt in mean completions; None is the recorded length.
    """

    name: str
    prompt_ratio: float | None = None
    native_n: bool = True
    cached: bool = False
    token_prices: TokenPrices = TOKEN_PRICES


PRICINGS = (
    CallPricing("short prompts, one call per sample", native_n=False),
    CallPricing("short prompts, native n"),
    CallPricing("prompt 10 × completion, one call per sample", 10, native_n=False),
    CallPricing(
        "prompt 10 × completion, native n, cached at a tenth",
        10,
        cached=True,
        token_prices=CHEAP_CACHE,
    ),
    CallPricing("prompt 10 × completion, native n, cached at half", 10, cached=True),
    CallPricing("prompt 10 × completion, native n", 10),
    CallPricing("prompt 40 × completion, native n", 40),
)


def read_exams(samples: Path) -> tuple[Pool, FloatArray, FloatArray]:
    """Return the questions, the tokens of their prompts, and the tokens of every completion."""
    table = pq.read_table(samples / FILE)
    table = table.filter(pc.match_substring_regex(table["question_id"], f"^({'|'.join(EXAMS)})"))
    with TemporaryDirectory() as directory:
        pq.write_table(table, Path(directory, "part.parquet"))
        import_samples(Path(directory, "part.parquet"), Path(directory, "run"))
        run = Run(Path(directory, "run"))
        pool, recorded = read_pool(run), encode_samples(run.samples())
    chars = recorded.column("completion_chars")
    completion = np.where(np.isnan(chars), np.nanmean(chars), chars) / CHARS_PER_TOKEN
    prompt = np.array([len(text or "") for text in recorded.text]) / CHARS_PER_TOKEN
    return pool, prompt, completion


def price_pool(
    pricing: CallPricing, pool: Pool, prompt: FloatArray, completion: FloatArray
) -> Pool:
    """Return the pool with the costs of samples and rounds, in money per thousand questions.

    With cached prompts, the extra cost of the first call is left out: it is the same for every
    policy.
    """
    tokens, prices = prompt, pricing.token_prices
    if pricing.prompt_ratio is not None:
        tokens = np.full(len(prompt), pricing.prompt_ratio * completion.mean())
    input_price = prices.cached_input if pricing.cached else prices.input
    prompt_cost = tokens * (input_price or 0.0) / 1e3
    sample_cost = completion * prices.output / 1e3
    if pricing.native_n:
        return replace(pool, sample_cost=sample_cost, round_cost=prompt_cost)
    return replace(pool, sample_cost=sample_cost + prompt_cost[pool.answers.question])


def fit_with_free_rounds(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Fit the sequential policy as if rounds cost nothing, so that it takes one sample a round."""
    fitted = POLICY_FACTORIES["sequential"](experiment, train)
    assert isinstance(fitted.policy, SequentialPolicy)
    table = replace(fitted.policy.votes, round_cost=0.0, _plans={})
    return replace(fitted, policy=replace(fitted.policy, table=table))


def score(experiment: Experiment, name: str) -> PolicyScore:
    """Score a policy on held-out questions."""
    return score_policy(experiment, fit_with_free_rounds if name == FREE_ROUNDS else name)


def format_point(point: CurvePoint) -> str:
    """Format the accuracy and the rounds of a point."""
    return f"{100 * point.accuracy:.1f} ({point.result.n_rounds.mean():.2f})"


def compare_calls(pool: Pool, prompt: FloatArray, completion: FloatArray) -> None:
    """Print accuracy and rounds of every policy with every pricing."""
    print("accuracy (rounds) at the cost of n samples in one call, n =", *BUDGET_SAMPLES)
    for pricing in PRICINGS:
        priced = price_pool(pricing, pool, prompt, completion)
        sample_cost = float(priced.mean_sample_cost().mean())
        round_cost = float(priced.round_costs.mean())
        budgets = tuple(sample_cost * n + round_cost for n in BUDGET_SAMPLES)
        experiment = Experiment(priced, LEVELS, budgets)
        print(f"\n{pricing.name}: a round costs as much as {round_cost / sample_cost:.2f} samples")
        scores = {name: score(experiment, name) for name in POLICIES}
        for name, other in scores.items():
            cells = [format_point(other.curve.read(b)) for b in budgets]
            gain = scores["sequential"].difference(other, budgets)
            value, low, high = (100 * end for end in (gain.value, gain.low, gain.high))
            interval = f"sequential {value:+.2f} [{low:+.2f}, {high:+.2f}]"
            print(f"| {name} |", " | ".join(cells), f"| {interval} |", flush=True)


def print_surface(pool: Pool) -> None:
    """Print accuracy and rounds of ``sequential`` by maximum number of rounds and budget."""
    print("\n| max rounds |", " | ".join(f"B = {b:g}" for b in SURFACE_BUDGETS), "|")
    fitted: dict[bytes, FittedPolicy] = {}

    def fit_once(experiment: Experiment, train: IntArray) -> FittedPolicy:
        key = train.tobytes()
        if key not in fitted:
            fitted[key] = POLICY_FACTORIES["sequential"](experiment, train)
        return fitted[key]

    unlimited = Experiment(pool, LEVELS, SURFACE_BUDGETS)
    for max_rounds in (1, 2, 3, 4, UNLIMITED_ROUNDS):
        experiment = replace(unlimited, max_rounds=max_rounds)
        curve = score_held_out(experiment, fit_once)
        cells = [format_point(curve.read(budget)) for budget in SURFACE_BUDGETS]
        name = "unlimited" if max_rounds == UNLIMITED_ROUNDS else str(max_rounds)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    mixture = score(unlimited, "mixture").curve
    cells = [f"{100 * mixture.read(b).accuracy:.1f}" for b in SURFACE_BUDGETS]
    print("| mixture |", " | ".join(cells), "|")


def main() -> None:
    """Read the exams and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    pool, prompt, completion = read_exams(parser.parse_args().samples)
    lengths = f"{prompt.mean():.0f} tokens per prompt, {completion.mean():.0f} per completion"
    print(f"{len(pool)} questions, {lengths}")
    print_surface(pool)
    compare_calls(pool, prompt, completion)


if __name__ == "__main__":
    main()
