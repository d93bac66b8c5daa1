"""The generated pages of the reference name everything that the code defines."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")


from adacompute.cli.main import list_commands
from adacompute.cli.options import option_key
from adacompute.datasets.layout import ALIASES, CHATS, PUBLIC_NAMES
from adacompute.gateway.accounting.metrics import (
    CAP_GAUGES,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    IN_FLIGHT,
    NOT_READY,
    PREFIX,
    STORE_GAUGES,
)
from adacompute.gateway.error_replies import ERROR_CODES
from adacompute.gateway.settings.config import Config
from adacompute.storage.calls import END_COLUMNS, START_COLUMNS

ROOT = Path(__file__).resolve().parent.parent
GATEWAY = ROOT / "src" / "adacompute" / "gateway"
sys.path.insert(0, str(ROOT / "docs"))  # as docs/conf.py does
generate: Any = importlib.import_module("generate")

REJECTING = {"send_rejection", "_reject", "_stop_parsing", "Forbidden", "reject"}
"""Functions of the gateway whose last argument is a code."""


def named_in(page: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", page))


def test_pages_are_written_and_excluded_from_other_checks(tmp_path: Path) -> None:
    generate.write_pages(tmp_path)
    written = {path.stem for path in tmp_path.glob("*.md")}
    assert written == set(generate.PAGES)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {f"/docs/reference/{name}.md" for name in written} <= set(ignored)


def test_every_command_is_on_its_page() -> None:
    page = generate.command_line()
    for name, command in list_commands().items():
        section = page.partition(f"\n## adacompute {name}\n")[2].partition("\n## ")[0]
        names = {option_key(one) for one in command.params if isinstance(one, click.Option)}
        anchors = re.findall(r"^\[`[^`]+`\]\{#([\w-]+)\}$", section, re.MULTILINE)
        assert set(anchors) == {f"{name}-{one}".replace(" ", "-") for one in names}


@pytest.mark.parametrize("title", generate.TABLES)
def test_every_setting_has_a_meaning(title: str) -> None:
    kind, _ = generate.TABLES[title]
    assert all(len(meaning) > 10 for _, meaning in generate.settings(kind))
    section = generate.configuration().partition(f"## `{title}`")[2].partition("\n## ")[0]
    assert {field.name for field in fields(kind)} <= named_in(section)


def test_every_metric_is_on_its_page() -> None:
    known = {*COUNTERS, *HISTOGRAMS, *GAUGES, *CAP_GAUGES, *STORE_GAUGES, IN_FLIGHT, NOT_READY}
    assert {PREFIX + name for name in known} <= named_in(generate.metrics())


def test_every_column_is_on_its_page() -> None:
    page = generate.columns()
    assert page.count("\n## ") == 6
    assert {*START_COLUMNS, *END_COLUMNS} <= named_in(page)


def test_the_members_of_calls_are_those_that_are_written() -> None:
    source = (GATEWAY / "accounting" / "call_log.py").read_text()
    written = set(re.findall(r'"(\w+)":[{"]', source.partition("class CallLog")[2]))
    assert written == {*START_COLUMNS, *END_COLUMNS}


def test_every_recognised_column_is_named() -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text()
    table = page.partition("### How files are read")[2].partition("\n- **")[0]
    pairs = {(ours, name) for ours, names in ALIASES.items() for name in (ours, *names)}
    public = {ours for ours, _ in PUBLIC_NAMES}
    known = {name for ours, name in pairs if ours not in public}
    assert known | CHATS - {"chat", "conversation", "conversations"} <= named_in(table)


def find_codes() -> set[str]:
    """Codes of errors in the source of the gateway."""
    found = set()
    for path in GATEWAY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                values = node.args[-1:] if name in REJECTING else []
                values += [one.value for one in node.keywords if one.arg == "code"]
            elif isinstance(node, ast.Tuple) and len(node.elts) == 3:
                first = node.elts[0]
                is_status = isinstance(first, ast.Constant) and type(first.value) is int
                values = node.elts[2:] if is_status or ast.unparse(first).isupper() else []
            found |= {
                str(one.value)
                for one in values
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found


def test_every_code_of_an_error_is_listed() -> None:
    codes = find_codes()
    assert len(codes) > 20
    assert codes <= set(ERROR_CODES)
    unlisted = set(ERROR_CODES) - codes
    assert unlisted == {"cap_reached", "cap_unavailable"}  # chosen by a condition


SECURITY_PAGES = [ROOT / "SECURITY.md", ROOT / "docs" / "how-to" / "secure.md"]
WITHOUT_CLAIMS = {"What is not covered"}
"""Sections of these pages that promise nothing."""

NOT_TESTED = "not tested"
NAMED_TEST = re.compile(r"`(test_\w+)`")
HEADING = re.compile(r"^#+ (.+)$\n", re.MULTILINE)
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
BULLET = re.compile(r"^- .*(?:\n  .*)*", re.MULTILINE)


def find_tests() -> set[str]:
    """Names of all tests in the repository."""
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in sources for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def table_rows(text: str) -> list[str]:
    """Rows of the tables of a page, without their headings and the lines below them."""
    rows = ROW.findall(text)
    lines = {number for number, row in enumerate(rows) if set(row) <= set("|-")}
    return [row for number, row in enumerate(rows) if not {number, number + 1} & lines]


def claims(page: Path) -> list[str]:
    """Rows of tables and bullets of a page, in sections that promise something."""
    _, *parts = HEADING.split(page.read_text())
    found = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        if title not in WITHOUT_CLAIMS:
            found += [*table_rows(text), *BULLET.findall(text)]
    return found


@pytest.mark.parametrize("page", SECURITY_PAGES, ids=lambda page: page.name)
def test_every_claim_about_security_names_a_test_or_says_that_it_has_none(page: Path) -> None:
    found = claims(page)
    assert len(found) > 10
    assert [one for one in found if not NAMED_TEST.search(one) and NOT_TESTED not in one] == []
    assert set(NAMED_TEST.findall(page.read_text())) - find_tests() == set()


def test_limits_on_the_page_about_security_are_the_defaults() -> None:
    defaults = {field.name: field.default for field in fields(Config)}
    compared = set()
    for row in table_rows(SECURITY_PAGES[1].read_text()):
        _, first, shown, *_ = row.split("|")
        names = [
            name
            for name in re.findall(r"`(\w+)`", first)
            if type(defaults.get(name)) in (int, float)
        ]
        numbers = [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*\.?\d*", shown)]
        for name, number in zip(names, numbers, strict=bool(names)):
            assert defaults[name] == number, name
            compared.add(name)
    assert {"max_body_mb", "timeout_s", "max_concurrency"} <= compared
