"""The worked changes in docs/contribute still apply, and their tests pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTE = ROOT / "docs" / "contribute"
TESTS = {
    "grader": "tests/graders/test_yes_no.py tests/graders/test_grader.py",
    "policy": "tests/policies/test_first_to.py "
    "tests/api/test_estimators.py::test_every_kind_of_policy_has_an_estimator",
    "rival": "reproduction/tests/test_rivals.py",
}
"""What each page says to run."""


def test_every_diff_is_checked() -> None:
    assert {path.stem for path in (CONTRIBUTE / "diffs").glob("*.diff")} == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_the_page_shows_the_diff_and_says_what_to_run(name: str) -> None:
    page = (CONTRIBUTE / f"add-a-{name}.md").read_text()
    assert f"{{literalinclude}} diffs/{name}.diff" in page
    assert TESTS[name] in page


@pytest.mark.slow
def test_the_diff_applies_and_its_tests_pass(tmp_path: Path) -> None:
    """Each diff applies by itself; their tests run once, with all diffs applied."""
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests", "test_support", "reproduction", "docs/reference"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    diffs = [str(CONTRIBUTE / "diffs" / f"{name}.diff") for name in TESTS]
    files = [word for words in TESTS.values() for word in words.split()]
    for command in (
        *(["git", "apply", "--check", diff] for diff in diffs),
        ["git", "apply", *diffs],
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *files],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
