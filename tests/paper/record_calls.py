"""A plugin of pytest that records under coverage which lines each test and fixture executes.

The contexts of a test are its own and those of its fixtures, so that a fixture that several tests
share counts for all of them. They are written to the file that CONTEXTS_FILE names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest
from hypothesis import settings

_open_contexts = [""]


@contextmanager
def _context(name: str) -> Iterator[None]:
    measured = coverage.Coverage.current()
    assert measured is not None, "run this under coverage"
    _open_contexts.append(name)
    measured.switch_context(name)
    try:
        yield
    finally:
        _open_contexts.pop()
        measured.switch_context(_open_contexts[-1])


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    with _context(_name(fixturedef)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with _context(item.nodeid):
        return (yield)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    settings.register_profile("few", deadline=None, max_examples=5, derandomize=True)
    settings.load_profile("few")  # one example is enough to see what is executed
    contexts: dict[str, set[str]] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        own = contexts.setdefault(item.originalname, set())
        known = item._fixtureinfo.name2fixturedefs.values()
        own |= {item.nodeid, *(_name(fixture) for several in known for fixture in several)}
    found = {test: sorted(own) for test, own in contexts.items()}
    Path(os.environ["CONTEXTS_FILE"]).write_text(json.dumps(found))
