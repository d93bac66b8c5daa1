"""Adaptive collection: rounds that sample only the questions whose best level is undecided.

Every question gets a few samples first. After each round the samples are graded, and questions
whose best level may still change get two more, until all are decided or have the maximum. The next
round depends only on the samples in the store, so a stopped collection resumes exactly. It knows
neither servers nor files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adacompute.collection.collector import CollectionResult, Question
from adacompute.collection.store import CollectionStore
from adacompute.core.answers import Answers, number_classes
from adacompute.core.posterior import INITIAL_SAMPLES, SAMPLES_PER_ROUND, find_undecided
from adacompute.graders.grader import Grader, grade

Votes = tuple[list[int], list[bool]]


@dataclass(eq=False)
class RoundSamples:
    """The graded samples of one arm in a store; unchanged questions are not graded again.

    ``gold`` has the reference answers of the questions by their position.
    """

    store: CollectionStore
    arm: str
    grader: Grader
    gold: Mapping[int, str | None]
    _graded: dict[int, Votes] = field(default_factory=dict)

    def read(self) -> dict[int, Votes]:
        """Return the answer classes and grades of each question that has samples."""
        for position, by_arm in self.store.read([self.arm], list(self.gold)):
            texts = [one.sample.text or None for one in by_arm[self.arm] if one.sample is not None]
            if len(texts) != len(self._graded.get(position, ([], []))[0]):
                graded = grade(self.grader, texts, self.gold[position])
                self._graded[position] = (number_classes(graded.answer), list(graded.correct))
        return self._graded


def plan_round(
    graded: Mapping[int, Votes], positions: Iterable[int], *, max_samples: int, budget: float
) -> dict[int, tuple[int, int]]:
    """Return the target and current number of samples of each question that needs more."""
    initial = min(INITIAL_SAMPLES, max_samples)
    current = {name: len(graded[name][0]) if name in graded else 0 for name in positions}
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
    questions: Sequence[Question],
    graded: RoundSamples,
    sample: Callable[[Sequence[Question], int], Awaitable[CollectionResult]],
    *,
    max_samples: int,
    budget: float,
) -> CollectionResult:
    """Sample round by round until every question is decided, or nothing more can be sampled.

    A question for which a round brought no new sample is not tried again; it counts as missing.
    ``sample`` returns the same result each time, with what it has added.
    """
    positions, result = [position for position, _ in questions], CollectionResult()
    tried: dict[int, int] = {}
    while not result.stopped:
        lacking = plan_round(graded.read(), positions, max_samples=max_samples, budget=budget)
        by_target = defaultdict(list)
        for position, text in questions:
            target, current = lacking.get(position, (0, 0))
            if target and tried.get(position) != current:
                by_target[target].append((position, text))
                tried[position] = current
        if not by_target:
            break
        for target in sorted(by_target):
            if not result.stopped:
                result = await sample(by_target[target], target)
    lacking = plan_round(graded.read(), positions, max_samples=max_samples, budget=budget)
    result.done, scored = graded.store.count(graded.arm, positions, max_samples)
    result.unscored = result.done - scored
    result.planned = result.done + sum(target - current for target, current in lacking.values())
    return result
