"""Expected spend: which share of a total a plan expects to spend on which questions.

Files are often sorted: easy questions first, or one exam after another. So what should be left of
the total in the middle of a batch depends on the questions that come. The shares of shards follow
from their cells; within a shard they are spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.batch.planning.cost_curves import cell_costs, has_cell_costs
from adacompute.batch.planning.local import PlannedBatch
from adacompute.batch.planning.plan import BatchPlan
from adacompute.core.types import FloatArray


@dataclass(frozen=True, eq=False)
class ExpectedSpend:
    """Expected cost of all questions before each of some positions, which rise.

    >>> spend = ExpectedSpend(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 40.0]))
    >>> spend.share_until(10), spend.slice(5, 15).share_until(5)
    (0.25, 0.25)
    """

    positions: FloatArray
    costs: FloatArray

    @classmethod
    def uniform(cls, n_questions: int) -> ExpectedSpend:
        """Return the same cost for every question."""
        ends = np.array([0.0, n_questions])
        return cls(ends, ends)

    @property
    def total(self) -> float:
        """Expected cost of all questions."""
        return float(self.costs[-1] - self.costs[0])

    def share_until(self, n_questions: int) -> float:
        """Return the share of the cost of all questions that the first ones have."""
        return (self._cost_until(n_questions) - float(self.costs[0])) / self.total

    def slice(self, start: int, stop: int) -> ExpectedSpend:
        """Return the costs of a range of questions, counted from its start."""
        inside = (self.positions > start) & (self.positions < stop)
        positions = np.concatenate([[start], self.positions[inside], [stop]]).astype(np.float64)
        return ExpectedSpend(positions - start, np.interp(positions, self.positions, self.costs))

    def _cost_until(self, n_questions: int) -> float:
        return float(np.interp(n_questions, self.positions, self.costs))


def expect_spend(batch: PlannedBatch, plan: BatchPlan) -> ExpectedSpend:
    """Return what a plan expects to spend, shard by shard."""
    sizes = np.array([shard.stop - shard.start for shard in batch.shards], dtype=np.float64)
    cost = sizes
    if has_cell_costs(batch.bundle):
        classes = cell_costs(batch.bundle)
        means = [
            classes.curve(np.asarray(one.counts, dtype=np.int64)[0]).cost_at(plan.price)
            if one.n_questions
            else 0.0
            for one in batch.summaries
        ]
        cost = np.array(means) * np.array([one.n_questions for one in batch.summaries])
    starts = np.append([shard.start for shard in batch.shards], batch.source.n_questions)
    return ExpectedSpend(starts.astype(np.float64), np.append(0.0, np.cumsum(cost)))
