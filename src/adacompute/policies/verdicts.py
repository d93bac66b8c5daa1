"""Verdicts: which policies may be used at a budget, by the verdict of their calibration.

It does not judge: `calibrate` writes the verdict into the bundle.
"""

from __future__ import annotations

from adacompute.core.errors import BundleError
from adacompute.policies.bundle import NOT_JUDGED, Bundle


def check_verdict(bundle: Bundle, budget: float, *, path: str, is_accepted: bool) -> None:
    """Refuse the bundle at ``path`` if it showed no gain at a budget, unless that is accepted."""
    verdict = bundle.verdict(budget)
    if verdict not in (None, "gain", NOT_JUDGED) and not is_accepted:
        raise BundleError(
            f"the verdict on {path} at a budget of {budget:g} is {verdict!r}: train and use the "
            "policy 'mixture', or accept the verdict (--accept-verdict, or accept_verdict in a "
            "configuration)"
        )
