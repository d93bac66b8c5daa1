"""Integrations: test every example in integrations/ in an environment of its own.

    python -m scripts.run_integrations [FOLDER…]

Each folder with a requirements.txt gets a virtual environment in a temporary directory. uv installs
the requirements, pytest and this checkout there, by name from the package index. The tests of the
folder run, and a table at the end shows the time of each. The exit code is 1 if one failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "integrations"
TIMEOUT_S = 900.0
PYTEST_OPTIONS = ("-q", "-ra", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(FOLDER))
"""Without the options of the project's own tests, some of which need its development tools."""


@dataclass(frozen=True)
class Outcome:
    """What happened to one integration; times are in seconds."""

    tool: str
    version: str
    install_s: float
    test_s: float
    result: str


def first_requirement(folder: Path) -> str:
    """Return the name of the package that the integration is for."""
    line = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()[0]
    return line.partition(">")[0].partition("[")[0]


def run(*command: str) -> bool:
    """Run a command in the folder of integrations; False if it fails or takes too long."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, cwd=FOLDER, env=environment, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def check(folder: Path, place: Path, uv: str) -> Outcome:
    """Install and test one integration."""
    python = str(place / "bin" / "python")
    requirements = str(folder / "requirements.txt")
    target = ("pip", "install", "--quiet", "--python", python)
    start = time.monotonic()
    is_installed = run(uv, "venv", "--quiet", "--python", sys.executable, str(place)) and run(
        uv, *target, "--requirements", requirements, "pytest", f"{ROOT}[serve]"
    )
    installed = time.monotonic()
    if not is_installed:
        return Outcome(folder.name, "", installed - start, 0.0, "not installed")
    package = first_requirement(folder)
    code = f"from importlib.metadata import version; print(version({package!r}))"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    begin = time.monotonic()
    is_passed = run(python, "-m", "pytest", *PYTEST_OPTIONS, folder.name)
    result = "passed" if is_passed else "failed"
    name = f"{package} {version.stdout.strip()}"
    return Outcome(folder.name, name, installed - start, time.monotonic() - begin, result)


def main() -> None:
    """Check the folders that are named, or all of them, and print a table."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not installed: pip install uv")
    known = sorted(path.parent.name for path in FOLDER.glob("*/requirements.txt"))
    names = sys.argv[1:] or known
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"there is no integration {unknown[0]!r}, only {', '.join(known)}")
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            outcomes.append(check(FOLDER / name, Path(temporary) / name, uv))
            shutil.rmtree(Path(temporary) / name, ignore_errors=True)
    lines = ["| folder | version | install (s) | test (s) | result |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.tool} | {one.version} | {one.install_s:.0f} | {one.test_s:.0f} | {one.result} |"
        for one in outcomes
    ]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.exit(any(one.result != "passed" for one in outcomes))


if __name__ == "__main__":
    main()
