"""Adaptive: collects in rounds, and draws on only for questions whose level is undecided.

Every question gets a few draws. Then, round by round, what was drawn is graded, and those whose
level more draws may still change get two more, until all are settled or have as many as were asked
for. What to draw next depends on the samples in the ledger alone, so a collection that was stopped
goes on as if it had not been. It knows neither servers nor files.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adacompute.collection.collector import Progress
from adacompute.core.answers import Answers, number_classes
from adacompute.core.posterior import INITIAL_SAMPLES, SAMPLES_PER_ROUND, find_undecided
from adacompute.graders.grader import Grader, grade
from adacompute.storage.ledger import Ledger

Questions = Sequence[tuple[str, str]]
Votes = tuple[list[int], list[bool]]


@dataclass(eq=False)
class RoundSamples:
    """The samples of one mode in a ledger, graded; what did not change is not graded again."""

    ledger: Ledger
    mode: int
    grader: Grader
    gold: Mapping[str, str | None]
    _graded: dict[str, Votes] = field(default_factory=dict)

    def read(self) -> dict[str, Votes]:
        """Answer classes, and whether they are right, of each question that has samples."""
        samples = self.ledger.samples(self.mode)
        for question, group in itertools.groupby(samples, key=lambda sampled: sampled.question):
            if question not in self.gold:  # collected for another file of questions
                continue
            texts = [sampled.text or None for sampled in group]
            if len(texts) != len(self._graded.get(question, ([], []))[0]):
                graded = grade(self.grader, texts, self.gold[question])
                self._graded[question] = (number_classes(graded.answer), list(graded.correct))
        return self._graded


def plan_round(
    drawn: Mapping[str, Votes], names: Iterable[str], *, samples: int, budget: float
) -> dict[str, tuple[int, int]]:
    """Say how many draws each question is to have next, and has; what is done is left out."""
    few = min(INITIAL_SAMPLES, samples)
    have = {name: len(drawn[name][0]) if name in drawn else 0 for name in names}
    wanted = {name: few for name, count in have.items() if count < few}
    begun = [name for name, count in have.items() if count >= few]
    if begun:
        answers = Answers.of([drawn[n][0] for n in begun], [drawn[n][1] for n in begun])
        for i in find_undecided(answers, budget).tolist():
            name = begun[i]
            if have[name] < samples:
                wanted[name] = min(have[name] + SAMPLES_PER_ROUND, samples)
    return {name: (count, have[name]) for name, count in wanted.items()}


async def collect_rounds(
    questions: Questions,
    drawn: RoundSamples,
    draw: Callable[[Questions, int], Awaitable[Progress]],
    *,
    samples: int,
    budget: float,
) -> Progress:
    """Draw round by round until every question is settled, or nothing more can be had.

    A question that a round brought nothing for is not asked for again; what it lacks is missing.
    """
    names, total = [name for name, _ in questions], Progress(0, 0)
    tried: dict[str, int] = {}
    while True:
        lacking = plan_round(drawn.read(), names, samples=samples, budget=budget)
        wanted = defaultdict(list)
        for name, text in questions:
            target, have = lacking.get(name, (0, 0))
            if target and tried.get(name) != have:
                wanted[target].append((name, text))
                tried[name] = have
        for target in sorted(wanted):
            if not total.stopped:
                _add(total, await draw(wanted[target], target))
        if not wanted or total.stopped:
            break
    lacking = plan_round(drawn.read(), names, samples=samples, budget=budget)
    total.done, scored = drawn.ledger.count(names, drawn.mode, below=samples)
    total.unscored = total.done - scored
    total.wanted = total.done + sum(target - have for target, have in lacking.values())
    return total


def _add(total: Progress, part: Progress) -> None:
    """Add what one part of a round did."""
    for name in ("drawn", "calls", "tokens", "cost", "scored"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for what, count in part.failed.items():
        total.failed[what] = total.failed.get(what, 0) + count
    total.stopped = part.stopped
