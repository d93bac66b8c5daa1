"""Grading queues: one queue per grader, for all virtual models that use the grader.

Failures are counted in the metrics. It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from functools import partial

from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.settings.config import Config
from adacompute.graders.grader import Grader
from adacompute.sampling.grading import Grading


class GradingQueues:
    """The queues of all graders of a gateway."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._queues: list[Grading] = []

    def queue_for(self, grader: Grader) -> Grading:
        """Return the queue of a grader; it is made when it is first asked for."""
        found = next((queue for queue in self._queues if queue.grader is grader), None)
        if found is None:
            found = Grading(
                grader,
                timeout_s=self._config.grader_timeout_s,
                max_queue=self._config.max_grader_queue,
                on_failure=partial(self._metrics.count, "grader_failures_total", grader.name),
            )
            self._queues.append(found)
        return found

    async def close(self) -> None:
        """Stop all graders; processes that do not end are killed."""
        await asyncio.gather(*(asyncio.to_thread(queue.close) for queue in self._queues))
