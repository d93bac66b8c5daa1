"""Bundle checks: which bundles can be used, by their verdict, their arms and their signals.

It does not judge: `calibrate` writes the verdict into the bundle.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from adacompute.core.errors import BundleError
from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import ADVISED, NOT_JUDGED, Bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule

EQUAL_VOTES, TODAY_PRICE = "equal", 1.0
"""Votes that can be served as today, and the price of that policy's only setting."""


def check_verdict(bundle: Bundle, budget: float, *, path: str, is_accepted: bool) -> None:
    """Refuse the bundle at ``path`` if it showed no gain at a budget, unless that is accepted."""
    verdict = bundle.verdict(budget)
    if verdict not in (None, *ADVISED, NOT_JUDGED) and not is_accepted:
        raise BundleError(
            f"the verdict on {path} at a budget of {budget:g} is {verdict!r}: train and use the "
            "policy 'mixture', or accept the verdict (--accept-verdict, or accept_verdict in a "
            "configuration)"
        )


def check_precision(bundle: Bundle, path: str) -> None:
    """Refuse a bundle without a guarantee, where unsure answers are treated differently."""
    if bundle.correctness is None or bundle.correctness.threshold is None:
        raise BundleError(
            f"{path} guarantees no precision, so no answer is sure: fit it with --min-precision "
            "and a precision that some of its answers reach"
        )


class _AsToday(RulePolicy):
    """Draws all of its samples, as is done today, even where the vote is decided."""

    takes_all = True


def make_today(bundle: Bundle, path: str) -> Bundle:
    """Return the bundle that answers as today, by the number of samples that ``fit`` was given."""
    today = (bundle.notes.get("calibration") or {}).get("today")
    if not today:
        raise BundleError(
            f"{path} does not say what is run today, so no request can be answered as today: fit "
            "it with --today N"
        )
    if today["arm"] is not None or today["votes"] != EQUAL_VOTES:
        raise BundleError(
            f"{path} was compared with {today['votes']} votes of the arm {today['arm']}, and only "
            "equal votes of one arm can be served as today: leave out today_share"
        )
    size = int(today["wanted_samples"])
    known = make_levels((size,)), (FixedRule(size),), PriceSchedule((TODAY_PRICE,))
    policy = _AsToday("today", *known)
    return replace(
        bundle, policy=policy, frontier=(), pooled_frontier=(), correctness=None, arms=()
    )


def check_arms(bundle: Bundle, path: str) -> None:
    """Refuse a policy over several arms that does not say how they are sampled."""
    policy = bundle.policy
    if len(policy.arms) > 1 and not bundle.arms:
        raise BundleError(
            f"{path} does not say how its arms {', '.join(policy.arms)} are sampled, because their "
            "samples were imported: collect them with 'adacompute collect --arm …'"
        )


def check_signals(bundle: Bundle, path: str, supplied: Collection[str] = ()) -> None:
    """Refuse a policy that uses signals beside those that are supplied or come in replies."""
    confidence = bundle.policy.confidence
    given = [] if confidence is None else confidence.given
    if missing := [name for name in given if name not in supplied]:
        raise BundleError(
            f"{path} uses {' and '.join(missing)} of each sample, which no server returns: run it "
            "in Python, where your model gives them (a gateway with a scorer gives a score), or "
            "fit it with --config evidence=votes"
        )
