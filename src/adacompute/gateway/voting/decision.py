"""Decision: what was decided for one request, and the sample that answers it.

It is made by the engine and read by the account; it decides nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array
    from adacompute.gateway.voting.request_model import RequestModel, SampledChoice
    from adacompute.models.messages import Sample
    from adacompute.sampling.session import Session
    from adacompute.spending.shared_pacing import SharedPacer

QuestionSource = Literal["template", "message", "none"]
"""Where the question was found: by the bundle's template, as a message, or nowhere."""


SCALE = 2**32


def is_among(number: str, share: float) -> bool:
    """Whether a request is in a random share of all, by hexadecimal digits that are random.

    >>> is_among("7fffffff", 0.5), is_among("80000000", 0.5), is_among("ffffffff", 1.0)
    (True, False, True)
    """
    return int(number[:8], 16) < share * SCALE


@dataclass(eq=False)
class Decision:
    """What was decided for one request, as it is logged.

    ``chosen`` is the index of the sample that answers, −1 where none was parsed. ``p_correct`` is
    how likely it is right, and ``is_sure`` whether its precision is guaranteed; None is not known.
    ``prepare_s`` is the time before the first decision. ``is_today`` says that it is answered as
    today. ``cost`` is in the unit of the bundle, and ``pacer`` is what the price came from, if it
    is not that of a budget of the request's own.
    """

    id: str
    model: str
    budget: float
    question_source: QuestionSource
    features: Float32Array
    session: Session
    started_at: float
    prepare_s: float = 0.0
    chosen: int = -1
    p_correct: float | None = None
    is_sure: bool | None = None
    latency_s: float = 0.0
    is_incomplete: bool = False
    is_today: bool = False
    scorer_error: str | None = None
    cost: float = 0.0
    pacer: SharedPacer | None = None

    @property
    def decision_s(self) -> float:
        """Time that all decisions of the request took."""
        return self.prepare_s + self.session.progress.decision_s

    @property
    def samples_used(self) -> int:
        """Number of samples that voted on the answer."""
        return self.session.n_samples

    def judge(self) -> None:
        """Note how likely the answer is right."""
        self.p_correct, self.is_sure = self.session.judge()

    @property
    def is_unsure(self) -> bool:
        """Whether the answer is less sure than those whose precision is guaranteed.

        It does not matter at which price the precision was tested.
        """
        model = self.session.progress.bundle.correctness
        limit = None if model is None else model.threshold
        return limit is not None and (self.p_correct is None or self.p_correct < limit)

    def settle(self) -> None:
        """Report the cost to the pacer, once; a request that cost nothing is none to it."""
        pacer, self.pacer = self.pacer, None
        if pacer is not None and self.cost > 0:
            pacer.settle(self.cost)
        elif pacer is not None:
            pacer.cancel()


@dataclass(frozen=True, eq=False)
class Outcome:
    """The sample that answers a request, what was decided, and what was sampled."""

    sample: Sample
    decision: Decision
    model: RequestModel

    @property
    def choice(self) -> SampledChoice:
        """The reply that the sample came in."""
        found: SampledChoice = self.sample.raw
        return found
