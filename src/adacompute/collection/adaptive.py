"""Adaptive collection: rounds that sample only the questions whose best level is undecided.

Every question gets a few samples first. After each round the samples are graded, and questions
whose best level may still change get two more, until all are decided or have the maximum. The next
round depends only on the samples in the ledger, so a stopped collection resumes exactly. It knows
neither servers nor files.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adacompute.collection.collector import CollectionProgress
from adacompute.core.answers import Answers, number_classes
from adacompute.core.posterior import INITIAL_SAMPLES, SAMPLES_PER_ROUND, find_undecided
from adacompute.graders.grader import Grader, grade
from adacompute.storage.ledger import Ledger

Questions = Sequence[tuple[str, str]]
Votes = tuple[list[int], list[bool]]


@dataclass(eq=False)
class RoundSamples:
    """The graded samples of one arm in a ledger; unchanged questions are not graded again."""

    ledger: Ledger
    arm_id: int
    grader: Grader
    gold: Mapping[str, str | None]
    _graded: dict[str, Votes] = field(default_factory=dict)

    def read(self) -> dict[str, Votes]:
        """Return the answer classes and grades of each question that has samples."""
        samples = self.ledger.samples(self.arm_id)
        for question, group in itertools.groupby(samples, key=lambda stored: stored.question):
            if question not in self.gold:  # collected for another question file
                continue
            texts = [stored.text or None for stored in group]
            if len(texts) != len(self._graded.get(question, ([], []))[0]):
                graded = grade(self.grader, texts, self.gold[question])
                self._graded[question] = (number_classes(graded.answer), list(graded.correct))
        return self._graded


def plan_round(
    graded: Mapping[str, Votes], names: Iterable[str], *, max_samples: int, budget: float
) -> dict[str, tuple[int, int]]:
    """Return the target and current number of samples of each question that needs more."""
    initial = min(INITIAL_SAMPLES, max_samples)
    current = {name: len(graded[name][0]) if name in graded else 0 for name in names}
    targets = {name: initial for name, count in current.items() if count < initial}
    begun = [name for name, count in current.items() if count >= initial]
    if begun:
        answers = Answers.of([graded[n][0] for n in begun], [graded[n][1] for n in begun])
        for i in find_undecided(answers, budget).tolist():
            name = begun[i]
            if current[name] < max_samples:
                targets[name] = min(current[name] + SAMPLES_PER_ROUND, max_samples)
    return {name: (target, current[name]) for name, target in targets.items()}


async def collect_rounds(
    questions: Questions,
    graded: RoundSamples,
    sample: Callable[[Questions, int], Awaitable[CollectionProgress]],
    *,
    max_samples: int,
    budget: float,
) -> CollectionProgress:
    """Sample round by round until every question is decided, or nothing more can be sampled.

    A question for which a round brought no new sample is not tried again; it counts as missing.
    """
    names, total = [name for name, _ in questions], CollectionProgress(0, 0)
    tried: dict[str, int] = {}
    while True:
        lacking = plan_round(graded.read(), names, max_samples=max_samples, budget=budget)
        by_target = defaultdict(list)
        for name, text in questions:
            target, current = lacking.get(name, (0, 0))
            if target and tried.get(name) != current:
                by_target[target].append((name, text))
                tried[name] = current
        for target in sorted(by_target):
            if not total.stopped:
                _add(total, await sample(by_target[target], target))
        if not by_target or total.stopped:
            break
    lacking = plan_round(graded.read(), names, max_samples=max_samples, budget=budget)
    total.done, scored = graded.ledger.count(names, graded.arm_id, below=max_samples)
    total.unscored = total.done - scored
    total.planned = total.done + sum(target - current for target, current in lacking.values())
    return total


def _add(total: CollectionProgress, part: CollectionProgress) -> None:
    """Add the counts of one part of a round."""
    for name in ("new_samples", "calls", "tokens", "cost", "scored"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for message, count in part.failed.items():
        total.failed[message] = total.failed.get(message, 0) + count
    total.stopped = part.stopped
