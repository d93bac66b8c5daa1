"""Attempts: their upper bounds, and what they are charged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from adacompute.models.calls import NO_USAGE
from adacompute.models.model import UNBOUNDED_TOKENS, CallUsage
from adacompute.spending.attempts import CallBound, UsageTracker

BOUND = CallBound.of("m", n=3, max_tokens=20, body_bytes=40)


def used(prompt: int, completion: int, **more: Any) -> CallUsage:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    return replace(CallUsage(tokens), **more)


def test_bounds_are_bytes_of_the_body_and_tokens_of_all_samples() -> None:
    assert CallBound("m", prompt_tokens=40, completion_tokens=60, n_samples=3) == BOUND
    unlimited = CallBound.of("m", n=2, max_tokens=None, body_bytes=1)
    assert unlimited.completion_tokens == 2 * UNBOUNDED_TOKENS


@pytest.mark.parametrize("usage", [used(7, 9), used(0, 0), used(700, 900), NO_USAGE])
def test_what_a_server_reports_is_charged_as_it_is(usage: CallUsage) -> None:
    assert BOUND.charge(usage) is usage


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        (None, used(40, 60, is_estimated=True)),
        (used(7, 9, is_estimated=True), used(40, 60, is_estimated=True)),
        (used(7, 99, is_estimated=True), used(40, 60, is_estimated=True)),
        (used(70, 9, is_estimated=True, n_samples=2), used(70, 60, is_estimated=True, n_samples=2)),
    ],
)
def test_what_is_not_known_is_charged_at_the_bound(
    usage: CallUsage | None, charged: CallUsage
) -> None:
    assert BOUND.charge(usage) == charged


@pytest.mark.parametrize(
    ("ends", "reported"),
    [
        ([used(1, 2), None], [used(1, 2)]),
        ([None, used(1, 2)], [BOUND.charge(None)]),
        ([NO_USAGE, None], []),
    ],
)
def test_the_first_end_of_an_attempt_counts_and_refused_ones_are_not_reported(
    ends: list[CallUsage | None], reported: list[CallUsage]
) -> None:
    found: list[CallUsage] = []
    attempt = asyncio.run(UsageTracker(found.append, BOUND).start("path", b"{}", 1))
    assert not attempt.has_ended
    for usage in ends:
        attempt.end(usage)
        assert attempt.has_ended
    assert found == reported


def test_every_attempt_of_a_call_is_reported() -> None:
    found: list[CallUsage] = []

    async def call() -> None:
        tracker = UsageTracker(found.append, BOUND)
        (await tracker.start("path", b"{}", 1)).end(None)
        (await tracker.start("path", b"{}", 2)).end(used(3, 4))

    asyncio.run(call())
    assert found == [BOUND.charge(None), used(3, 4)]
