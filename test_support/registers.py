"""Registers: what tests of all kinds of registers need."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from adacompute.spending.registers import Reading, Register, RegisterError

R = TypeVar("R", bound=Register)


@asynccontextmanager
async def using(register: R) -> AsyncIterator[R]:
    """Close a register at the end of the block."""
    try:
        yield register
    finally:
        await register.close()


def increase(reading: Reading) -> tuple[str, int]:
    """Add 1 to a value; this is for ``update``."""
    number = int(reading.value or 0) + 1
    return str(number), number


async def fails_within(seconds: float, call: Awaitable[object]) -> None:
    """Check that a call fails in time."""
    started = time.monotonic()
    with pytest.raises(RegisterError):
        await call
    assert time.monotonic() - started < seconds
