"""Collection store: which samples of which question and arm a run has paid for.

    questions.parquet   the ids of all questions; the position of a question is its row
    arms.json           the arms, each with its model, prompt and settings, in a fixed order
    segments/           the store of paid samples
    open-calls.bin      attempts under way

Both lists only grow, so a position or an arm keeps its meaning when a run gets other questions. It
keeps in memory which samples there are, not the samples. It calls nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.storage.paid_samples import SAMPLE, SCORE, SEGMENTS, Payment, read_payments
from adacompute.storage.regular_files import (
    read_json,
    read_table,
    write_atomically,
    write_table,
)

STORE = "paid"
"""Name of the directory in a run."""

PAGE_SIZE = 4096
"""Questions whose samples are read at once."""

Arm = dict[str, str]
"""An arm as it is stored: its name, model, prompt template and settings."""


class CollectionStore:
    """The store of a run directory."""

    def __init__(self, run: Path) -> None:
        self.directory = run / STORE
        self.directory.mkdir(parents=True, exist_ok=True)
        self.segments = self.directory / SEGMENTS
        self._questions_path = self.directory / "questions.parquet"
        self._arms_path = self.directory / "arms.json"
        self.ids: list[str] = []
        self.arms: list[Arm] = []
        if self._questions_path.is_file():
            self.ids = read_table(self._questions_path)["question_id"].to_pylist()
        if self._arms_path.is_file():
            self.arms = read_json(self._arms_path)["arms"]
        self._positions = {name: i for i, name in enumerate(self.ids)}
        self._sampled: dict[tuple[str | None, int], int] = {}
        self._scored: dict[tuple[str | None, int], int] = {}
        self.note(read_payments(self.segments, with_samples=False))

    def register_questions(self, ids: Iterable[str]) -> list[int]:
        """Return the positions of questions; new ones get the next."""
        asked = list(ids)
        new = [name for name in dict.fromkeys(asked) if name not in self._positions]
        if new:
            self._positions |= {name: len(self.ids) + i for i, name in enumerate(new)}
            self.ids += new
            write_table(self._questions_path, pa.table({"question_id": self.ids}))
        return [self._positions[name] for name in asked]

    def register_arms(self, arms: Sequence[Arm]) -> None:
        """Add arms; DataError if one has samples with another model, prompt or settings."""
        known = {arm["arm"]: arm for arm in self.arms}
        for arm in arms:
            old = known.get(arm["arm"])
            if old is not None and old != arm and self.has_samples(arm["arm"]):
                names = {"model": "model", "template": "prompt", "settings": "settings"}
                other = " and ".join(name for key, name in names.items() if old[key] != arm[key])
                raise DataError(
                    f"{self.directory.parent} holds samples of the arm {arm['arm']!r} with another "
                    f"{other}: collect into another directory, or give the arm a name of its own "
                    "with --arm name=…"
                )
            known[arm["arm"]] = arm
        self.arms = list(known.values())
        write_atomically(self._arms_path, json.dumps({"arms": self.arms}, indent=2).encode())

    def has_samples(self, arm: str) -> bool:
        """Whether there is a sample of an arm."""
        return any(name == arm for name, _ in self._sampled)

    def note(self, payments: Iterable[Payment]) -> None:
        """Note that payments are in the store."""
        for one in payments:
            if one.kind in {SAMPLE, SCORE}:
                held = self._sampled if one.kind == SAMPLE else self._scored
                key = one.arm, one.position
                held[key] = held.get(key, 0) | 1 << one.number

    def missing(self, arm: str, position: int, n_samples: int) -> list[int]:
        """Return the numbers below ``n_samples`` of which a question has no sample."""
        held = self._sampled.get((arm, position), 0)
        return [i for i in range(n_samples) if not held >> i & 1]

    def unscored(self, arm: str, position: int, n_samples: int) -> list[int]:
        """Return the numbers of a question's samples that have no score."""
        key = arm, position
        without = self._sampled.get(key, 0) & ~self._scored.get(key, 0)
        return [i for i in range(n_samples) if without >> i & 1]

    def count(self, arm: str, positions: Iterable[int], n_samples: int) -> tuple[int, int]:
        """Count these questions' samples with a number below ``n_samples``, and their scores."""
        below = (1 << n_samples) - 1
        keys = [(arm, position) for position in positions]
        sampled, scored = (
            sum((held.get(key, 0) & below).bit_count() for key in keys)
            for held in (self._sampled, self._scored)
        )
        return sampled, scored

    def read(
        self, arms: Sequence[str | None] | None = None, positions: Sequence[int] | None = None
    ) -> Iterator[tuple[int, dict[str | None, list[Payment]]]]:
        """Yield each question with samples: its position, and the samples of each arm in order.

        What a score cost is part of its sample's cost. Questions are in order of their positions.
        """
        wanted = None if positions is None else set(positions)
        first, last = 0, len(self.ids)
        if positions is not None:
            first, last = min(positions, default=0), max(positions, default=-1) + 1
        for start in range(first, last, PAGE_SIZE):
            stop = min(start + PAGE_SIZE, last)
            page = read_payments(self.segments, first=start, last=stop - 1)
            found = _merge(
                one
                for one in page
                if (wanted is None or one.position in wanted) and (arms is None or one.arm in arms)
            )
            for position in sorted(found):
                by_arm = found[position]
                yield (
                    position,
                    {arm: [held[n] for n in sorted(held)] for arm, held in by_arm.items()},
                )


def _merge(payments: Iterable[Payment]) -> dict[int, dict[str | None, dict[int, Payment]]]:
    """Return samples by position, arm and number, each with its score."""
    found: dict[int, dict[str | None, dict[int, Payment]]] = {}
    scores: list[Payment] = []
    for one in payments:
        if one.kind == SAMPLE:
            found.setdefault(one.position, {}).setdefault(one.arm, {})[one.number] = one
        elif one.kind == SCORE:
            scores.append(one)
    for score in scores:
        held = found.get(score.position, {}).get(score.arm, {})
        if (sample := held.get(score.number)) is not None:
            held[score.number] = replace(sample, score=score.score, cost=sample.cost + score.cost)
    return found
