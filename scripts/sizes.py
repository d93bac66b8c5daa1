"""Sizes: how much code there is, and how much users have to know; the sum is a constant.

``just sizes`` prints what is measured beside what ``[tool.adacompute.sizes]`` of pyproject.toml
allows, ``just sizes write`` that table as it is now, and ``tests/test_sizes.py`` bounds it: a
feature takes what another one gives. Lines are
those of the Python files, statements are nodes of the syntax tree, so that neither packed lines nor
missing docstrings make anything smaller.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

import adacompute
from adacompute.cli.main import list_commands
from adacompute.gateway.accounting import metrics
from adacompute.gateway.accounting.caps import CapConfig
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import ModelConfig, UpstreamConfig

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "adacompute"
BESIDE = ("tests", "test_support", "benchmarks", "reproduction", "reproduction/tests", "scripts")
GATEWAY = (Config, ModelConfig, UpstreamConfig, CapConfig)
FAMILIES = (
    metrics.COUNTERS,
    metrics.GAUGES,
    metrics.HISTOGRAMS,
    metrics.CAP_GAUGES,
    metrics.STORE_GAUGES,
)
NOT_COUNTED = {"as_json", "config", "help"}
SLACK = 1.02
"""A fix may make the package this much larger than the last feature left it."""


def count_statements(path: Path) -> int:
    """Return the statements of a file, or of all files below a directory."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in list_files(path))
    return sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))


def count_lines(path: Path) -> int:
    """Return the physical lines of a file, or of all files below a directory."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in list_files(path))


def list_files(path: Path) -> list[Path]:
    """Return the Python files below a directory; those of reproduction without its tests."""
    if path.is_file():
        return [path]
    is_reproduction = path == ROOT / "reproduction"
    found = path.rglob("*.py")
    return sorted(one for one in found if not (is_reproduction and "tests" in one.parts))


def list_options() -> dict[str, list[str]]:
    """Return the options of each command, those that only ``--config`` sets among them."""
    return {
        name: [
            str(one.name)
            for one in command.params
            if isinstance(one, click.Option) and one.name not in NOT_COUNTED
        ]
        for name, command in list_commands().items()
    }


def measure() -> dict[str, int]:
    """Return what is bounded, by its name in pyproject.toml."""
    return {
        "statements": count_statements(PACKAGE),
        "options": sum(map(len, list_options().values())),
        "settings": sum(len(fields(kind)) for kind in GATEWAY),
        "metrics": sum(map(len, FAMILIES)),
        "names": len(adacompute.__all__),
    }


def measure_folders() -> dict[str, list[int]]:
    """Return statements and lines of each folder of the package, and of the files beside them."""
    places = sorted(path for path in PACKAGE.iterdir() if path.is_dir() and list_files(path))
    found = {path.name: [count_statements(path), count_lines(path)] for path in places}
    own = sorted(PACKAGE.glob("*.py"))
    return {**found, "top": [sum(map(count_statements, own)), sum(map(count_lines, own))]}


def read_limits() -> dict[str, Any]:
    """Return what pyproject.toml allows."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    limits: dict[str, Any] = tomllib.loads(text)["tool"]["adacompute"]["sizes"]
    return limits


def describe() -> Iterator[str]:
    """Yield the lines that are printed: measured, and what the last feature left."""
    limits, folders = read_limits(), measure_folders()
    for name, count in measure().items():
        yield f"{name:22}{count:7,}  of {limits[name]:,}"
    yield f"{'folder':22}{'statements':>12}{'lines':>10}"
    for name, (statements, lines) in folders.items():
        was = limits["folders"].get(name, [0, 0])
        yield f"{name:22}{statements:12,}{lines:10,}  of {was[0]:,} and {was[1]:,}"
    yield f"{'wheel':22}{'':12}{sum(lines for _, lines in folders.values()):10,}"
    yield f"{'modules':22}{'':12}{len(list_files(PACKAGE)):10,}"
    for name in BESIDE:
        yield f"{name:22}{'':12}{count_lines(ROOT / name):10,}"
    yield f"{'design notes':22}{'':12}{len(list((ROOT / 'design').glob('*.md'))):10,}"
    for name, options in list_options().items():
        yield f"options of {name:11}{len(options):7,}  {', '.join(sorted(options))}"


def write() -> str:
    """Return the table for pyproject.toml, as it is now."""
    lines = ["[tool.adacompute.sizes]", *(f"{name} = {count}" for name, count in measure().items())]
    lines += ["", "[tool.adacompute.sizes.folders] # statements, lines"]
    lines += [f"{name} = {counts}" for name, counts in measure_folders().items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write((write() if sys.argv[1:] == ["write"] else "\n".join(describe())) + "\n")
