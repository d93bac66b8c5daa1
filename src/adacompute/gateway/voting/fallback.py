"""Fallback: whether a virtual model answers as today instead of by its policy, why and since when.

It begins when the policy raises an error, when questions or answers have drifted from those of the
training, or when grades show that the guaranteed precision is broken, and lasts until somebody
resets it. Processes share it in the register, where it outlives them; without a register each has
its own. It answers nothing itself, and does not know how grades arrive.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from adacompute.core.errors import DataError, GraderError, ModelError
from adacompute.core.evidence import ENOUGH, RiseDetector, measure_evidence
from adacompute.gateway.accounting.account import DRIFT_THRESHOLD
from adacompute.gateway.connection.exchange import ClientDisconnected
from adacompute.gateway.processes.logs import log
from adacompute.gateway.requests.refusals import BadRequest
from adacompute.gateway.settings.model_settings import TODAY
from adacompute.gateway.voting.decision import Decision
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.policies.bundles.baseline import MAX_DRIFT
from adacompute.spending.registers import Reading, Register, RegisterError, read_value, update

FALLBACK = "fallback/"
"""Prefix of a model's key in the register."""

DRIFT, PRECISION, ERROR = "drift", "precision", "error"
"""Reasons of a fallback."""

MIN_RELATIVE = 0.9
"""Mean of ``p_correct``, relative to the accuracy in calibration, below which answers drift; and so
for the agreement of samples where today's are drawn."""

NOT_OF_POLICY = (ModelError, GraderError, RegisterError, BadRequest, OSError, ClientDisconnected)
"""Failures of a request that say nothing of its policy."""


@dataclass(frozen=True)
class FallbackState:
    """What processes share of one model: no reason means that its policy decides.

    ``right`` and ``wrong`` are the grades of sure answers since the last of ``n_resets``.
    """

    reason: str | None = None
    detail: str = ""
    since: float = 0.0
    right: int = 0
    wrong: int = 0
    n_resets: int = 0

    @staticmethod
    def from_json(text: str) -> FallbackState:
        """Read what is stored; DataError if it is of another form."""
        return read_value(text, _build_state, "the state of a fallback")


def _build_state(found: Any) -> FallbackState:  # noqa: ANN401 - JSON of others
    reason, detail, since = found["reason"], str(found["detail"]), float(found["since"])
    counts = (int(found[name]) for name in ("right", "wrong", "n_resets"))
    return FallbackState(None if reason is None else str(reason), detail, since, *counts)


class Fallback:
    """The fallback of one virtual model in one process."""

    def __init__(self, virtual: VirtualModel) -> None:
        self.model = virtual.name
        self.key = FALLBACK + self.model
        self.is_on = virtual.fallback == TODAY and not virtual.shadow
        self._virtual = virtual
        self._state = FallbackState()
        self._found: FallbackState | None = None
        self._new_right = self._new_wrong = 0
        self._restart()

    @property
    def reason(self) -> str | None:
        """Why requests are answered as today now; None if the policy decides."""
        return (self._found or self._state).reason

    def covers(self, error: Exception) -> bool:
        """Whether an error is the policy's, so that the request is to be answered as today."""
        if not self.is_on or isinstance(error, NOT_OF_POLICY):
            return False
        self._begin(ERROR, f"the policy failed: {type(error).__name__}: {error}")
        return True

    def watch(self, decision: Decision, drift: float | None) -> None:
        """Look for drift in a decision; ``drift`` is that of its question."""
        if not self.is_on or self.reason is not None or decision.question_source == "none":
            return
        if drift is not None and self._questions.add(drift / MAX_DRIFT):
            self._begin(DRIFT, "the questions differ from the training questions")
        if decision.is_today:
            agreement = _measure_agreement(decision.session.answers)
            if agreement is not None and self._pairs.add(1.0 - agreement):
                self._begin(DRIFT, "samples agree less than those of the training questions")
            return
        is_comparable = decision.budget == self._virtual.budget
        if is_comparable and self._answers.add(1.0 - (decision.p_correct or 0.0)):
            self._begin(DRIFT, "answers are less likely right than in calibration")

    def count_grade(self, *, correct: bool) -> None:
        """Count the grade of a sure answer."""
        self._new_right += correct
        self._new_wrong += not correct

    async def exchange(self, register: Register | None) -> None:
        """Tell other processes what was found here, and learn what they found."""
        found, right, wrong = self._found, self._new_right, self._new_wrong

        def merge(known: FallbackState) -> FallbackState:
            graded = replace(known, right=known.right + right, wrong=known.wrong + wrong)
            begun = found or self._judge_grades(graded)
            if graded.reason is not None or begun is None:
                return graded
            return replace(graded, reason=begun.reason, detail=begun.detail, since=begun.since)

        if register is None:
            merged = merge(self._state)
        else:
            merged = await _change(register, self.key, self._state, merge)
        self._new_right -= right
        self._new_wrong -= wrong
        if self._found is found:
            self._found = None
        self._take(merged)

    def _take(self, state: FallbackState) -> None:
        """Follow what all processes know, and log what that changes."""
        before, self._state = self._state, state
        if state.n_resets != before.n_resets:
            self._restart()
        if state.reason != before.reason:
            now = "by the policy again" if state.reason is None else "as today, until a reset"
            known = {"reason": state.reason, "detail": state.detail}
            log(logging.WARNING, f"requests are answered {now}", model=self.model, **known)

    def _begin(self, reason: str, detail: str) -> None:
        """Begin the fallback in this process; others learn of it in the next exchange."""
        if self.reason is None:
            self._found = FallbackState(reason, detail, time.time())

    def _judge_grades(self, state: FallbackState) -> FallbackState | None:
        """Return the fallback that grades call for, if they show a broken guarantee."""
        target = self._virtual.bundle.min_precision
        if target is None or measure_evidence(state.right, state.wrong, target) < ENOUGH:
            return None
        detail = f"{state.right} of {state.right + state.wrong} sure answers were right"
        return FallbackState(PRECISION, detail, time.time())

    def _restart(self) -> None:
        """Look for drift from now on."""
        self._questions = RiseDetector(DRIFT_THRESHOLD / MAX_DRIFT)
        baseline = self._virtual.bundle.baseline
        self._answers = _make_detector(_expect_accuracy(self._virtual))
        self._pairs = _make_detector(None if baseline is None else baseline.agreement)


def _make_detector(expected: float | None) -> RiseDetector:
    """Return what finds that a share falls well below what was expected, if that is known."""
    return RiseDetector(math.inf if expected is None else 1.0 - MIN_RELATIVE * expected)


def _measure_agreement(answers: Sequence[int]) -> float | None:
    """Return the share of pairs of parsed answers that agree; None if there is no pair."""
    votes = Counter(answer for answer in answers if answer >= 0)
    n_parsed = votes.total()
    agreeing = sum(count * (count - 1) for count in votes.values())
    return agreeing / (n_parsed * (n_parsed - 1)) if n_parsed > 1 else None


def _expect_accuracy(virtual: VirtualModel) -> float | None:
    """Return the lowest accuracy at the budget in calibration; None where it cannot be compared."""
    frontier = virtual.bundle.frontier
    known = [one for one in frontier if one.accuracy_low is not None]
    if virtual.bundle.correctness is None or not known:
        return None
    lowest = np.array([one.accuracy_low for one in known], np.float64)
    return float(np.interp(virtual.budget, [one.budget for one in known], lowest))


async def _change(
    register: Register,
    key: str,
    default: FallbackState,
    change: Callable[[FallbackState], FallbackState],
) -> FallbackState:
    """Change what processes share of a model; a register that lost it gets it again."""

    def change_text(reading: Reading) -> tuple[str | None, FallbackState]:
        stored = None if reading.value is None else FallbackState.from_json(reading.value)
        changed = change(default if stored is None else stored)
        is_new = stored is not None or changed != FallbackState()
        return json.dumps(asdict(changed)) if is_new else None, changed

    return await update(register, key, change_text)


async def read_fallbacks(register: Register, models: Iterable[str]) -> dict[str, FallbackState]:
    """Return the models that answer as today, with why and since when.

    A state that cannot be read is among them, so that it can be reset.
    """
    found: dict[str, FallbackState] = {}
    for model in models:
        try:
            state = await _change(register, FALLBACK + model, FallbackState(), lambda known: known)
        except DataError as error:
            state = FallbackState(ERROR, str(error))
        if state.reason is not None:
            found[model] = state
    return found


async def reset_fallbacks(register: Register, models: Iterable[str]) -> None:
    """Let the policies of models decide again; drift and grades count from now on."""

    def reset(reading: Reading) -> tuple[str, None]:
        known = FallbackState()
        with suppress(DataError):
            known = FallbackState.from_json(reading.value or "{}")
        return json.dumps(asdict(FallbackState(n_resets=known.n_resets + 1))), None

    for model in models:
        await update(register, FALLBACK + model, reset)
