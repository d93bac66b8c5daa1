"""Blocks: where questions stand in their episodes, and the decisions that are due, made together.

A policy decides for a whole block of questions at once, and a block of 64 takes little longer than
one question. So the progress of a question is kept in plain numbers, and questions that wait for a
decision at the same time are put into one episode. Each gets the decision that it would get alone.
It knows nothing of texts, samples or models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import DataError
from adacompute.core.types import Float32Array
from adacompute.features.text import extract_features, feature_names
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.confidence import LENGTH, Confidence
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, start_state
from adacompute.policies.policy import (
    NO_LEVEL,
    ObservedSamples,
    SampleEvidence,
    SampleMatrix,
    SeenSamples,
)

MANY_ROUNDS = 1 << 20
"""Rounds that no question reaches: as many are as good as no limit."""


@dataclass(eq=False, slots=True)
class QuestionProgress:
    """Where one question stands: after its last decision, with the samples that came since.

    ``features`` are as the policy prepared them, None until they are needed. ``n_decided`` is the
    number of samples that the last decision has seen, ``target`` the number that the next one
    needs. ``answers`` are classes, −1 for unparsed.
    ``arms`` and ``evidence`` are those of each sample, for policies that see arms and confidence,
    and empty for others.
    ``episode`` is kept after a decision for this question alone, to save building it again.
    """

    bundle: Bundle
    price: float
    question: str | None
    key: int
    rounds_left: int = UNLIMITED_ROUNDS
    features: Float32Array | None = None
    answers: list[int] = field(default_factory=list)
    arms: list[int] = field(default_factory=list)
    evidence: SampleEvidence = field(default_factory=lambda: SampleEvidence([], []))
    level: int = NO_LEVEL
    n_decided: int = 0
    target: int = 0
    is_active: bool = True
    is_due: bool = True
    decision_s: float = 0.0
    episode: Episode | None = None

    def planned_after(self, answers: Sequence[int]) -> int | None:
        """Samples that would be planned if these were all answers so far; None means stop."""
        if self.bundle.policy.confidence is not None:
            return self._planned_by_evidence(self.bundle.policy.confidence, answers)
        if (found := _look_up(self, answers)) is not None:
            return found.target if found.is_active else None
        after = _decide_block([self], [list(answers)])
        return int(after.target[0]) if len(after.active) else None

    def _planned_by_evidence(self, confidence: Confidence, answers: Sequence[int]) -> int | None:
        """Samples that would be planned, whatever the confidence of the samples that are missing.

        It is the largest number over some levels of confidence of those samples, which are of the
        open request.
        """
        if len(answers) < self.target:
            raise DataError(f"{self.target} samples are needed, got {len(answers)}")
        missing = len(answers) - len(self.arms)
        arm = self.bundle.policy.arm_of_level(max(self.level, 0))
        largest: int | None = None
        for assumed in confidence.assume(arm) if missing else ((0.0, 1.0),):
            log_odds, weight = (
                [*known, *[one] * missing]
                for known, one in zip(self.evidence, assumed, strict=True)
            )
            seen = replace(
                self,
                arms=[*self.arms, *[arm] * missing],
                evidence=SampleEvidence(log_odds, weight),
                target=len(answers),
                episode=None,
            )
            found = _look_up(seen, answers)
            if found is not None and found.is_active:
                largest = max(largest or 0, found.target)
        return largest

    def add_evidence(self, sample: Sample, answer: str | None) -> None:
        """Add the arm and the confidence of a sample, if the policy uses them."""
        policy = self.bundle.policy
        if policy.confidence is not None:
            arm = policy.arm_of_level(max(self.level, 0))
            values = read_signals(policy.confidence.signals, sample, answer)
            self.arms.append(arm)
            self.evidence.add(*policy.confidence.measure(arm, values))

    def find_missing(self, samples: Sequence[Sample]) -> list[str]:
        """Return the signals that the policy uses and that a sample does not have."""
        confidence = self.bundle.policy.confidence
        given = [] if confidence is None else confidence.given
        missing = [name for name in given if any(name not in one.signals for one in samples)]
        if self.bundle.needs_logprobs and any(one.mean_logprob is None for one in samples):
            missing.append("mean_logprob")
        return missing


def question_features(bundle: Bundle, question: str | None) -> Float32Array:
    """Return the features of a question, (1, F); without its text, those of an average one."""
    if question is not None:
        return question_block_features(bundle, [question])
    mean = () if bundle.baseline is None else bundle.baseline.feature_mean
    width = len(feature_names(bundle.features))
    return np.resize(np.asarray(mean or (0.0,), np.float32), (1, width))


def question_block_features(bundle: Bundle, questions: Sequence[str]) -> Float32Array:
    """Return the features of questions, (N, F); one takes about as long as dozens together."""
    return extract_features(questions, features=bundle.features)


def read_signals(names: Sequence[str], sample: Sample, answer: str | None) -> list[float]:
    """Return the signals of a sample, NaN where one is not known."""
    n_tokens = sample.completion_tokens
    length = len(sample.text) if n_tokens is None or sample.is_estimated else n_tokens
    known = {
        **sample.signals,
        "mean_logprob": sample.mean_logprob,
        "min_logprob_window": sample.min_logprob_window,
        LENGTH: math.log1p(length),
    }
    if "answer_logprob" in names:
        known["answer_logprob"] = sample.answer_logprob(answer)
    found = (known.get(name) for name in names)
    return [math.nan if value is None else value for value in found]


def decide(questions: Iterable[QuestionProgress]) -> None:
    """Make the decisions that are due: by lookup, or in as few blocks as possible."""
    blocks: dict[tuple[int, float, int, bool], list[QuestionProgress]] = {}
    questions = list(questions)
    _prepare_evidence(questions)
    for one in questions:
        if one.is_due and not decide_by_lookup(one):
            # A policy may plan a whole block for the fewest rounds that are left in it.
            left = min(one.rounds_left, MANY_ROUNDS)
            place = (id(one.bundle), one.price, left, one.level == NO_LEVEL)
            blocks.setdefault(place, []).append(one)
    for block in blocks.values():
        start = time.perf_counter()
        after = _decide_block(block, [one.answers for one in block])
        _move(block, after)
        taken = (time.perf_counter() - start) / len(block)
        for one in block:
            one.decision_s += taken


def _prepare_evidence(questions: Iterable[QuestionProgress]) -> None:
    """Compute missing features of questions whose policies see evidence, one block per bundle."""
    missing: dict[int, list[QuestionProgress]] = {}
    for one in questions:
        if one.features is None and one.bundle.policy.confidence is not None:
            missing.setdefault(id(one.bundle), []).append(one)
    for block in missing.values():
        _prepare(block)


def decide_by_lookup(one: QuestionProgress) -> bool:
    """Make the decision that is due for one question, if that is possible without a block."""
    start = time.perf_counter()
    found = _look_up(one, one.answers)
    if found is None:
        return False
    if one.level != NO_LEVEL:
        one.rounds_left -= 1
    one.n_decided = one.target
    if found.is_active:
        one.level, one.target = found.level, found.target
    one.is_active, one.is_due, one.episode = found.is_active, False, None
    one.decision_s += time.perf_counter() - start
    return True


class _Next(NamedTuple):
    """The next level of a question, the samples that it needs, and whether it goes on."""

    level: int
    target: int
    is_active: bool


def _look_up(one: QuestionProgress, answers: Sequence[int]) -> _Next | None:
    """Return what a question does next; None if it needs a block.

    It does what ``Episode.feed`` and ``Episode.decide`` do, for one question.
    """
    if one.bundle.policy.confidence is not None:
        return _look_up_evidence(one, answers)
    tables, n_samples, level = _lookup_tables(one.bundle), one.target, one.level
    if tables.lookup is None or len(answers) < n_samples or one.rounds_left < MANY_ROUNDS:
        return None
    feature = 0.0
    if tables.uses_features:
        if one.features is None:
            return None
        feature = one.features.item(0)
    costs = tables.costs
    next_cost = costs[min(n_samples, len(costs) - 1)]
    if level != NO_LEVEL:
        next_cost = max(0.0, next_cost - costs[level])
    found = tables.lookup.decide(
        tuple(answers[:n_samples]),
        level,
        price=one.price,
        key=one.key,
        feature=feature,
        next_cost=next_cost,
    )
    return _Next(found, one.bundle.policy.levels[found].n_samples, found > level)


def _look_up_evidence(one: QuestionProgress, answers: Sequence[int]) -> _Next | None:
    """Return what a question does next by a policy that sees arms and confidence."""
    if one.features is None and _uses_features(one.bundle):
        return None
    n_samples = one.target
    rounds = one.rounds_left - (one.level != NO_LEVEL)
    cell = int(one.features.item(0)) if one.features is not None and one.features.size else 0
    seen = SeenSamples(one.arms[:n_samples], answers[:n_samples], one.evidence.first(n_samples))
    found = one.bundle.policy.next_level(
        seen, price=one.price, key=one.key, cell=cell, rounds_left=rounds
    )
    if found is None or rounds <= 0:
        return _Next(one.level, n_samples, is_active=False)
    return _Next(*found, is_active=True)


class _LookupTables:
    """What lookups need of a bundle, worked out once."""

    def __init__(self, bundle: Bundle) -> None:
        self.lookup = bundle.policy.make_lookup()
        self.uses_features = _uses_features(bundle)
        self.costs: list[float] = bundle.level_cost[0].tolist()


_lookup_tables = lru_cache(maxsize=16)(_LookupTables)


def _move(block: list[QuestionProgress], after: Episode) -> None:
    """Write the decisions of an episode back to its questions."""
    active = np.zeros(len(block), dtype=np.bool_)
    active[after.active] = True
    levels, targets = after.state.level.tolist(), after.target.tolist()
    for one, level, target, is_active in zip(block, levels, targets, active.tolist(), strict=True):
        if one.level != NO_LEVEL:
            one.rounds_left -= 1
        one.n_decided = one.target
        one.level, one.target = level, target
        one.is_active, one.is_due = is_active, False
        one.episode = after if len(block) == 1 else None


def _decide_block(block: list[QuestionProgress], answers: list[list[int]]) -> Episode:
    """Decide for questions of one bundle and price that have all begun, or all not yet."""
    samples = _matrix(answers)
    kept = block[0].episode if len(block) == 1 else None
    episode = _resume(block, samples) if kept is None else kept
    if block[0].level != NO_LEVEL:
        episode = episode.feed(samples)
    return episode.decide()


def _resume(block: list[QuestionProgress], samples: SampleMatrix) -> Episode:
    """Put questions where they stand in an episode: after a decision, before its samples."""
    first, size = block[0], len(block)
    cost = first.bundle.level_cost
    episode = Episode.start(
        first.bundle.policy,
        first.price,
        start_state(
            key=np.array([one.key for one in block], dtype=np.uint64),
            features=_prepare(block),
            cost=np.broadcast_to(cost, (size, cost.shape[1])),
            samples=samples,
            max_rounds=first.rounds_left,
        ),
    )
    if first.level == NO_LEVEL:
        return episode
    decided = np.array([one.n_decided for one in block], dtype=np.int64)
    state = replace(
        episode.state,
        observed=ObservedSamples(samples, np.arange(size), decided),
        level=np.array([one.level for one in block], dtype=np.int64),
        rounds_left=np.array([one.rounds_left for one in block], dtype=np.int64),
    )
    target = np.array([one.target for one in block], dtype=np.int64)
    return replace(episode, state=state, target=target)


@lru_cache(maxsize=16)
def _uses_features(bundle: Bundle) -> bool:
    """Whether a bundle's decisions depend on the features of the question."""
    none = np.zeros((1, len(feature_names(bundle.features))), dtype=np.float32)
    return bool(bundle.policy.prepare_features(none).shape[1])


def _prepare(block: list[QuestionProgress]) -> Float32Array:
    """Features of the questions as the policy prepares them, worked out once per question."""
    bundle = block[0].bundle
    if not _uses_features(bundle):
        return np.empty((len(block), 0), dtype=np.float32)
    missing = [one for one in block if one.features is None]
    with_text = [one for one in missing if one.question is not None]
    if with_text:
        text = [one.question for one in with_text]
        prepared = bundle.policy.prepare_features(extract_features(text, features=bundle.features))
        for i, one in enumerate(with_text):
            one.features = prepared[i : i + 1]
    for one in missing:
        if one.features is None:
            one.features = bundle.policy.prepare_features(question_features(bundle, None))
    return np.concatenate([one.features for one in block if one.features is not None])


def _matrix(answers: list[list[int]]) -> SampleMatrix:
    """Answers of questions as the rows of one matrix, padded to the longest."""
    width = max(map(len, answers))
    padded = [[*row, *[UNPARSED] * (width - len(row))] for row in answers]
    return SampleMatrix(np.array(padded, dtype=np.int64).reshape(len(padded), width))
