"""Session: one question from the first decision to its answer, as ask and tell.

``ask`` says how many samples the policy wants next, ``tell`` takes them, until ``ask`` returns
None. Every decision is made by ``policies.episode``, so a session decides exactly as a replay of
the same samples does. It is pure: it opens no connection, starts no task and waits for nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import Float32Array, hash_text, replace_surrogates
from adacompute.graders.grader import Grader, load_grader
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.confidence import vote
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.policy import Policy
from adacompute.sampling.blocks import QuestionProgress, decide


@dataclass(frozen=True)
class Request:
    """What to sample next: ``n`` samples from the arm, which is None if there is only one."""

    n: int
    arm: str | None = None


@dataclass(frozen=True)
class ParsedAnswer:
    """A sample whose answer was extracted already; ``value`` is None if there is none.

    Two answers of a session are equal if and only if their values are.
    """

    value: str | None
    sample: Sample | None = None


AnySample = str | Sample | ParsedAnswer
"""A sample in any form that a session takes."""


NO_SIGNAL = (
    "the policy weighs samples by {0}, and one has none, so it counts as an average one: give its "
    "{0}, or fit the policy with evidence='votes'"
)

Equal = Callable[[str, str], bool]
"""Compares two answers, as a grader's ``equal`` does."""


def canonical_answer(
    grader: Grader, text: str, known: Collection[str], equal: Equal | None = None
) -> str | None:
    """Extract the answer of a text, in the spelling of the first known answer that equals it."""
    answer = grader.extract(text)
    if answer is None or answer in known:
        return answer
    compare = grader.equal if equal is None else equal
    return next((one for one in known if compare(one, answer)), answer)


class SupportsBundle(Protocol):
    """Anything that can give a bundle of itself, such as a fitted estimator."""

    def to_bundle(self) -> Bundle:
        """Return the policy with everything that its decisions need."""
        ...


def as_bundle(policy: Policy | Bundle | SupportsBundle) -> Bundle:
    """Return a bundle as it is, that of an estimator, or one of defaults around a policy."""
    if isinstance(policy, Bundle):
        return policy
    if callable(to_bundle := getattr(policy, "to_bundle", None)):
        found: Bundle = to_bundle()
        return found
    return Bundle(cast("Policy", policy))


def find_grader(
    policy: Policy | Bundle | SupportsBundle, grader: Grader | str | None
) -> Grader | None:
    """Return the grader that is given, else that of a fitted estimator, else the bundle's."""
    if grader is None:
        grader = getattr(policy, "grader_", None) or as_bundle(policy).grader
    return load_grader(grader) if isinstance(grader, str) else grader


class Session:
    """One question under a policy.

    ``policy`` is a bundle, a fitted estimator, or any policy, which then needs a ``price``: only a
    calibrated bundle knows the price of a budget. ``grader`` is a grader or its name, by default
    the bundle's; without one, ``tell`` takes only answers that are parsed already. ``key`` seeds
    deterministic mixing and is made from the question by default. ``features`` (1, F) replace those
    of the text.
    Do not use a session from several threads at once.

    >>> from adacompute.core.types import make_levels
    >>> from adacompute.policies.price_schedule import PriceSchedule
    >>> from adacompute.policies.rule_policy import RulePolicy
    >>> from adacompute.policies.uniform import FixedRule
    >>> policy = RulePolicy("fixed", make_levels((1, 3)), (FixedRule(3),), PriceSchedule((0.1,)))
    >>> session = Session(policy, "What is 17 + 25?", price=0.1, grader="numeric")
    >>> while request := session.ask():
    ...     session.tell(["It is 42.", "41", "= 42"])
    >>> session.answer, session.n_samples, session.chosen
    ('42', 3, 0)
    """

    def __init__(
        self,
        policy: Policy | Bundle | SupportsBundle,
        question: str | None,
        *,
        budget: float | None = None,
        price: float | None = None,
        grader: Grader | str | None = None,
        max_rounds: int | None = None,
        key: int | None = None,
        features: Float32Array | None = None,
    ) -> None:
        if question is not None and not isinstance(question, str):
            raise ConfigError(f"a question must be a text, got {type(question).__name__}")
        bundle = as_bundle(policy)
        if max_rounds is not None and max_rounds < 1:
            raise ConfigError(f"max_rounds must be 1 or more, not {max_rounds}")
        limit = bundle.max_rounds if max_rounds is None else max_rounds
        if question is not None:
            question = replace_surrogates(question)
        self.grader = find_grader(policy, grader)
        self.samples: list[Sample] = []
        self.values: list[str | None] = []
        self.rounds = 0
        self.progress = QuestionProgress(
            bundle,
            _choose_price(bundle, budget, price),
            question,
            hash_text(question or "") if key is None else key,
            UNLIMITED_ROUNDS if limit is None else limit,
            None if features is None else bundle.policy.prepare_features(features),
        )
        self._classes: dict[str, int] = {}
        self._counts: list[int] = []
        self._has_begun_round = False

    def __repr__(self) -> str:
        """Show the question, how many samples it has, and what they say."""
        state = "done" if self.is_done else f"{self.n_planned - self.n_samples} more asked for"
        question = "" if self.question is None else self.question
        return f"<Session {question!r}: {self.n_samples} samples, answer {self.answer!r}, {state}>"

    def ask(self) -> Request | None:
        """Return what to sample next, or None when the session is done.

        Asking again before ``tell`` returns the same request. After fewer samples than were asked
        for, it returns a request for the rest.
        """
        progress = self._decided()
        if not progress.is_active:
            return None
        if not self._has_begun_round:
            self._has_begun_round = True
            self.rounds += 1
        return Request(progress.target - len(self.samples), self.arm)

    def tell(self, samples: Iterable[AnySample]) -> None:
        """Take samples of the open request: all that were asked for, or fewer.

        Nothing is taken when there are more than were asked for, or when one cannot be used.
        """
        given, progress = _as_list(samples), self.progress
        if not progress.is_active:
            raise DataError(
                f"the session is done with {self.n_samples} samples and takes no more: stop when "
                "ask returns None"
            )
        if not self._has_begun_round:
            raise DataError("no samples were asked for: call ask before each tell")
        missing = progress.target - len(self.samples)
        if len(given) > missing:
            raise DataError(f"{missing} samples were asked for and {len(given)} are given")
        self._add(given)
        if len(given) == missing:
            progress.is_due, self._has_begun_round = True, False

    def finish(self, samples: Iterable[AnySample] = ()) -> None:
        """End the session with the samples that it has, even if more were asked for.

        ``samples`` are ones that came beyond what was asked for; they vote too.
        """
        if given := _as_list(samples):
            self._add(given)
        self.progress.is_active = self.progress.is_due = False

    def parse(self, sample: str | Sample, *, equal: Equal | None = None) -> ParsedAnswer:
        """Extract the answer of a sample without telling it; the session does not change.

        ``equal`` compares answers instead of the grader.
        """
        return self._parse(sample, tuple(self._classes), equal)

    @property
    def question(self) -> str | None:
        """The text of the question; None if it is not known."""
        return self.progress.question

    @property
    def price(self) -> float:
        """Price at which the session decides."""
        return self.progress.price

    @property
    def is_done(self) -> bool:
        """Whether no more samples are needed."""
        return not self._decided().is_active

    @property
    def arm(self) -> str | None:
        """Arm that the open request is for; None if there is only one."""
        policy = self.progress.bundle.policy
        if len(policy.arms) > 1:
            return policy.arms[policy.arm_of_level(max(self.progress.level, 0))]
        return None

    @property
    def answers(self) -> list[int]:
        """Class of each sample's answer: equal numbers are equal answers, −1 is unparsed."""
        return self.progress.answers

    @property
    def n_samples(self) -> int:
        """Samples that the session has."""
        return len(self.samples)

    @property
    def n_planned(self) -> int:
        """Samples that the session should have before its next decision."""
        return self.progress.target

    @property
    def answer(self) -> str | None:
        """The winning answer of all samples so far; None if none was parsed."""
        chosen = self.chosen
        return None if chosen is None else self.values[chosen]

    @property
    def chosen(self) -> int | None:
        """Index of the sample that answers: the first of the winning class. None if none does."""
        if not self._counts:
            return None
        weight = self._decided().evidence.weight
        if not weight:
            # Classes are numbered by their first samples.
            return self.answers.index(self._counts.index(max(self._counts)))
        found = vote(self.answers, weight)
        return found if found >= 0 else None

    @property
    def agreement(self) -> float | None:
        """Share of the parsed answers that equal the most frequent one; None without any."""
        return max(self._counts) / sum(self._counts) if self._counts else None

    @property
    def p_correct(self) -> float | None:
        """How likely the answer is right; None without one, or if the bundle cannot say."""
        return self.judge()[0]

    @property
    def is_sure(self) -> bool | None:
        """Whether the answer is one of those whose precision is guaranteed; None if not judged.

        It is not judged without a guarantee, and at prices that it was not tested at.
        """
        return self.judge()[1]

    def judge(self) -> tuple[float | None, bool | None]:
        """Return ``p_correct`` and ``is_sure``, both from one computation."""
        progress = self.progress
        correctness, text = progress.bundle.correctness, list[float]()
        if correctness is None or self.chosen is None:
            return None, None
        if progress.features is not None:
            text = progress.bundle.policy.describe_text(progress.features)[0].tolist()
        evidence, arms = progress.evidence, progress.arms
        chance = correctness.predict_one(self.answers, evidence, arms, text)
        return chance, correctness.is_sure(chance, self.price)

    @property
    def can_cancel(self) -> bool:
        """Whether the samples that are still missing can be cancelled.

        They can if, however they turn out, the answer stays the same and the session ends. It is
        False when none is missing.
        """
        missing = self.progress.target - len(self.samples)
        weighted = bool(self.progress.evidence.weight)
        if self.progress.bundle.policy.takes_all:
            return False
        if missing <= 0 or not self._counts or not self.progress.is_active or weighted:
            return False
        ranked = sorted(enumerate([*self._counts, 0]), key=lambda one: -one[1])
        # In the worst case all of them go to the second class.
        (_, leading), (second, behind) = ranked[:2]
        return leading - behind > missing and self.planned_after([second] * missing) is None

    def planned_after(self, answers: Sequence[int]) -> int | None:
        """Samples that would be planned after these answers to the open request; None means stop.

        The answers are classes: those of earlier samples, new ones, or −1 for unparsed.
        """
        return self._decided().planned_after([*self.answers, *answers])

    def _decided(self) -> QuestionProgress:
        """Make the decision that is due, if one is."""
        if self.progress.is_due:
            decide([self.progress])
        return self.progress

    def _add(self, given: list[AnySample]) -> None:
        """Record samples, or none of them if one cannot be used."""
        known: Collection[str] = self._classes
        values: list[str | None] = []
        samples: list[Sample] = []
        for one in given:
            parsed = one if isinstance(one, ParsedAnswer) else self._parse(one, known)
            value = parsed.value
            if value is not None and value not in known:
                known = [*known, value]
            values.append(value)
            samples.append(parsed.sample or Sample(value or ""))
        progress = self.progress
        if missing := progress.find_missing(samples):
            warnings.warn(NO_SIGNAL.format(" and ".join(missing)), stacklevel=3)
        for value, sample in zip(values, samples, strict=True):
            number = UNPARSED if value is None else self._count(value)
            progress.add_evidence(sample, value)
            progress.answers.append(number)
        self.values += values
        self.samples += samples

    def _parse(
        self, sample: str | Sample, known: Collection[str], equal: Equal | None = None
    ) -> ParsedAnswer:
        if self.grader is None:
            raise ConfigError("the policy names no grader: give one, or tell parsed answers")
        held = sample if isinstance(sample, Sample) else Sample(sample)
        is_cut_off = held.finish_reason == "length" and held.ran_out_of_tokens
        text = "" if is_cut_off else held.text
        return ParsedAnswer(canonical_answer(self.grader, text, known, equal), held)

    def _count(self, value: str) -> int:
        """Count a vote, and return the class of its answer."""
        number = self._classes.setdefault(value, len(self._counts))
        if number == len(self._counts):
            self._counts.append(0)
        self._counts[number] += 1
        return number


def _choose_price(bundle: Bundle, budget: float | None, price: float | None) -> float:
    if budget is not None and price is None:
        return bundle.price_for(budget)
    if price is None or budget is not None:
        raise ConfigError("a session needs a budget or a price: give exactly one of them")
    if not 0 <= price < math.inf:
        raise ConfigError(f"price must be a number of 0 or more, not {price}")
    return price


def _as_list(samples: Iterable[AnySample]) -> list[AnySample]:
    if isinstance(samples, str):
        raise DataError("samples must be a list: put a single text into a list")
    given: list[Any] = list(samples)
    for one in given:
        if not isinstance(one, (Sample, str, ParsedAnswer)):
            kind = type(one).__name__
            raise DataError(f"a sample must be a str, a Sample or a ParsedAnswer, not a {kind}")
    return given
