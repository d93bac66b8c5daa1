"""Spend: compares a gateway's account of its calls with what the fake upstream served.

Both sides name the client's ``x-request-id``, so calls are compared request by request. It knows
nothing of how either side counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SpendComparison", "compare_spend"]

Call = Mapping[str, Any]


@dataclass
class SpendComparison:
    """What the comparison found, in calls and in tokens of prompts and completions together.

    ``missing`` lists requests with a served call that has no row, ``wrong`` those with a row that
    is not flagged and differs from what was served, and ``too_low`` those whose flagged rows are
    charged less than was served. ``flagged_excess`` is what flagged rows are charged above that.
    """

    n_served: int = 0
    n_exact: int = 0
    n_flagged: int = 0
    served_tokens: int = 0
    charged_tokens: int = 0
    flagged_excess: int = 0
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    too_low: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether every call has its row, and flagged rows alone explain the difference."""
        difference = self.charged_tokens - self.served_tokens
        has_failed = self.missing or self.wrong or self.too_low
        return not has_failed and difference == self.flagged_excess >= 0


def compare_spend(charged: Iterable[Call], served: Iterable[Call]) -> SpendComparison:
    """Compare the calls of an account with those that an upstream served."""
    found = SpendComparison()
    by_request: dict[str, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for row in charged:
        by_request[row["request"]][0].append(row)
    for call in served:
        by_request[call["request"]][1].append(call)
    for request, (rows, calls) in by_request.items():
        _compare_request(found, request, rows, calls)
    return found


def _compare_request(
    found: SpendComparison, request: str, rows: list[Call], calls: list[Call]
) -> None:
    flagged = [_tokens(row) for row in rows if row["is_estimated"]]
    exact = Counter(_tokens(row) for row in rows if not row["is_estimated"])
    was_served = Counter(_tokens(call) for call in calls)
    found.n_served += len(calls)
    found.n_flagged += len(flagged)
    found.n_exact += sum(exact.values())
    found.served_tokens += _sum(was_served.elements())
    found.charged_tokens += _sum(flagged) + _sum(exact.elements())
    unserved = exact - was_served
    if any(tokens != (0, 0) for tokens in unserved):  # a call that was not sent costs nothing
        found.wrong.append(request)
    rest = sorted((was_served - exact).elements(), reverse=True)
    if len(rest) > len(flagged):
        found.missing.append(request)
    bounds = sorted(flagged, reverse=True)
    if any(
        bound[0] < one[0] or bound[1] < one[1] for bound, one in zip(bounds, rest, strict=False)
    ):
        found.too_low.append(request)
    found.flagged_excess += _sum(flagged) - _sum(rest)


def _tokens(call: Call) -> tuple[int, int]:
    return int(call["prompt_tokens"]), int(call["completion_tokens"])


def _sum(tokens: Iterable[tuple[int, int]]) -> int:
    return sum(prompt + completion for prompt, completion in tokens)
