"""Rounds: which partitions of a batch run in which round, and how much each may spend.

A partition is a batch of its own, whose total is its lease. When all of them have ended, some have
something left and others have questions that their lease has stopped. Each further round gives what
is left to those, until nothing of it is spent. This module does not run partitions, and knows
nothing of Ray.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adacompute.batch.answers import LIMITED
from adacompute.batch.job import MANIFEST, check_same_batch
from adacompute.spending.call_costs import CallCosts
from adacompute.storage.regular_files import read_json, write_atomically

PARTITIONS, ROUND = "partitions", "round-{:03d}.json"
MAX_ROUNDS = 8
"""What is left is shared out at most this often; each time little of it remains."""


@dataclass(frozen=True)
class Partition:
    """Consecutive questions, and the part of the total that they may spend.

    ``extra`` is what later rounds have added to the lease, or have taken from it.
    """

    number: int
    first: int
    n_questions: int
    lease: float
    extra: float = 0.0


class Rounds:
    """The rounds of a batch on Ray: which partitions run in each, with how much.

    Each round is a file that is written before it starts, so a batch that is stopped goes on in the
    round where it was. ``asked`` is what the directory must agree on.
    """

    def __init__(self, directory: Path, asked: Mapping[str, Any]) -> None:
        self.directory = directory
        self.asked = dict(asked)
        self.number = max(0, len(list(directory.glob("round-*.json"))) - 1)
        self.partitions: list[Partition] = []
        self._left: float | None = None

    def start(self, divide: Callable[[], list[Partition]]) -> list[Partition]:
        """Return the partitions to run: of the first round, or of the one that was under way."""
        path = self._path(self.number)
        if not path.is_file():
            self._write(divide(), None)
            return self.partitions
        known = read_json(path)
        check_same_batch(self.directory, known["batch"], self.asked)
        self.partitions = [Partition(**one) for one in known["partitions"]]
        self._left = known["left"]
        return self._limited(self.results()) if self.number else self.partitions

    def next(self, costs: CallCosts) -> list[Partition]:
        """Share out what is left; return the partitions that go on with it, if there are any."""
        results = self.results()
        left = sum(one["left"] for one in results)
        if left == self._left or self.number + 1 == MAX_ROUNDS:
            return []
        shared = share_left(self.partitions, results, costs)
        if shared == self.partitions:
            return []
        self.number += 1
        self._write(shared, left)
        return self._limited(results)

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all partitions."""
        return [
            read_json(find_partition(self.directory, one.number) / MANIFEST)
            for one in self.partitions
        ]

    def _limited(self, results: Sequence[Mapping[str, Any]]) -> list[Partition]:
        """Return the partitions with questions that want more."""
        found = zip(self.partitions, results, strict=True)
        return [one for one, result in found if result[LIMITED]]

    def _path(self, number: int) -> Path:
        return self.directory / ROUND.format(number)

    def _write(self, partitions: list[Partition], left: float | None) -> None:
        self.partitions, self._left = partitions, left
        self.directory.mkdir(parents=True, exist_ok=True)
        content = {
            "batch": self.asked,
            "left": left,
            "partitions": [vars(one) for one in partitions],
        }
        write_atomically(self._path(self.number), json.dumps(content).encode())


def share_left(
    partitions: Sequence[Partition], results: Sequence[Mapping[str, Any]], costs: CallCosts
) -> list[Partition]:
    """Give what partitions have left to those with limited questions, in proportion to these.

    The sum of leases and extras does not grow.
    """
    left = [costs.to_amount(one["left"]) for one in results]
    counts = [int(one[LIMITED]) for one in results]
    n_limited, pool = sum(counts), sum(left)
    if not n_limited or pool == sum(own for own, count in zip(left, counts, strict=True) if count):
        return list(partitions)
    return [
        replace(one, extra=one.extra + (pool * count // n_limited - own) / costs.per_unit)
        for one, own, count in zip(partitions, left, counts, strict=True)
    ]


def find_partition(directory: Path, number: int) -> Path:
    """Return the directory of a partition."""
    return directory / PARTITIONS / f"{number:06d}"
