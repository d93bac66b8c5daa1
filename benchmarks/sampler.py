"""Sampler: throughput of ``Sampler.map`` against a bare asyncio loop over the same samples.

``python -m benchmarks.sampler [QUESTIONS]``. Both use the same ``Model``, which answers at once: it
only lets other tasks run, as every real call does, so that all of the time is overhead. The bare
loop is given the number of samples of each question in each round; it calls the model, keeps the
samples and the usage, extracts the answers, merges equal ones and counts them. It decides nothing.
Both run in turns in one process, and the best turn of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path

from adacompute.core.types import make_levels
from adacompute.datasets.example import locate_bundle
from adacompute.graders.grader import load_grader
from adacompute.models.messages import Sample
from adacompute.models.model import CallUsage, Model, OnUsage
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.sampler import SampledAnswer, Sampler
from adacompute.sampling.session import canonical_answer

TURNS, CONCURRENCY = 41, 64
USAGE = CallUsage({"prompt_tokens": 20, "completion_tokens": 40})
SOLUTION = "Let me add the two numbers step by step: 17 and 20 make 37, and 5 more make 42. "


class InstantModel:
    """A model that answers at once with solutions, most of them with one answer."""

    def __init__(self, length: int) -> None:
        texts = [SOLUTION * length + f"The answer is {42 + (i % 4 == 0)}." for i in range(64)]
        self._texts = itertools.cycle(texts)

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield n solutions of one call."""
        del prompt, arm
        await asyncio.sleep(0)
        on_usage(USAGE)
        for _ in range(n):
            yield Sample(next(self._texts), samples_per_call=n)


async def run_bare(
    questions: list[str], model: Model, rounds: list[list[int]]
) -> list[tuple[str | None, list[Sample], list[CallUsage]]]:
    """Call the model, parse and vote, with the given numbers of samples."""
    grader = load_grader("numeric")
    answers: dict[int, tuple[str | None, list[Sample], list[CallUsage]]] = {}
    numbered = enumerate(questions)

    async def work() -> None:
        for i, question in numbered:
            votes: Counter[str] = Counter()
            samples: list[Sample] = []
            calls: list[CallUsage] = []
            for n in rounds[i]:
                async for sample in model.sample(question, n, on_usage=calls.append):
                    samples.append(sample)
                    if (answer := canonical_answer(grader, sample.text, votes)) is not None:
                        votes[answer] += 1
            answers[i] = (votes.most_common(1)[0][0] if votes else None, samples, calls)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
    return [answers[i] for i in range(len(questions))]


def measure(work: Awaitable[object]) -> float:
    """Return the CPU time of a coroutine."""
    start = time.process_time()
    asyncio.run(work)  # type: ignore[arg-type]  # a coroutine
    return time.process_time() - start


def compare(name: str, bundle: Bundle, length: int, questions: list[str]) -> None:
    """Print the questions per second of both, and their ratio."""
    model = InstantModel(length)
    sampler = Sampler(bundle, model=model, price=0.02, grader="numeric")

    async def run_sampler() -> list[SampledAnswer]:
        return await sampler.map(questions, concurrency=CONCURRENCY)

    answers = asyncio.run(run_sampler())
    rounds = [samples_per_round(answer) for answer in answers]
    best_bare, best_ours = float("inf"), float("inf")
    for _ in range(TURNS):
        best_bare = min(best_bare, measure(run_bare(questions, InstantModel(length), rounds)))
        best_ours = min(best_ours, measure(run_sampler()))
    n, samples = len(questions), sum(map(sum, rounds)) / len(questions)
    print(
        f"{name:34s} {samples:5.2f} samples {n / best_bare:8.0f}/s bare {n / best_ours:8.0f}/s "
        f"ours, ratio {best_bare / best_ours:.2f}"
    )


def samples_per_round(answer: SampledAnswer) -> list[int]:
    """Return the number of samples of each call, from the calls that the samples share."""
    sizes, i = list[int](), 0
    while i < answer.n_samples:
        sizes.append(answer.samples[i].samples_per_call)
        i += sizes[-1]
    return sizes


def make_rule_bundle(rule: Rule) -> Bundle:
    """Return a bundle of one rule over levels of 1 to 8 samples."""
    policy = RulePolicy("rule", make_levels(tuple(range(1, 9))), (rule,), PriceSchedule((0.1,)))
    return Bundle(policy, grader="numeric")


def main() -> None:
    """Compare policies of one and of many rounds, with short and long completions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=512)
    n_questions = parser.parse_args().questions
    questions = [f"What is {i} + {i % 7}? End with the answer." for i in range(n_questions)]
    example = load_bundle(locate_bundle(Path("example")))
    for length in (1, 8):
        size = f"{len(SOLUTION) * length + 18} characters"
        compare(f"fixed 4, {size}", make_rule_bundle(FixedRule(4)), length, questions)
        adaptive = make_rule_bundle(AdaptiveConsistencyRule(0.9, 8))
        compare(f"adaptive-consistency, {size}", adaptive, length, questions)
        compare(f"sequential, {size}", example, length, questions)


if __name__ == "__main__":
    main()
