"""Hashed requirements: what the image and the release install, by version and SHA-256.

    python -m scripts.hash_requirements

It writes ``deploy/requirements.txt`` (the gateway), ``deploy/requirements-build.txt`` (what builds
the package) and ``deploy/requirements-sbom.txt`` (what lists the installed packages) from
``pyproject.toml`` and the versions in ``constraints.txt``. They hold names,
versions and the hashes of wheels for Linux on x86-64 and ARM, and no addresses: which registry they
come from is the installer's choice. It needs uv, and trusts the registry that uv asks.
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
PYTHON = "3.11"
"""Of the image; see `deploy/Dockerfile`."""

EXTRAS = ("serve", "math")
HEAD = f"# For Python {PYTHON} on Linux. 'just pins' writes this file.\n"
Hashes = dict[str, set[str]]


def resolve(requirements: str, *arguments: str) -> Hashes:
    """Return the hashes of all wheels that may be installed, by name and version."""
    found: Hashes = {}
    command = ["uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--only-binary=:all:"]
    command += ["--constraint", "constraints.txt", "--python-version", PYTHON]
    for platform in PLATFORMS:
        done = subprocess.run(
            [*command, "--python-platform", platform, *arguments, "-"],
            input=requirements,
            capture_output=True,
            check=True,
            cwd=ROOT,
            text=True,
        )
        for package in tomllib.loads(done.stdout)["packages"]:
            hashes = {wheel["hashes"]["sha256"] for wheel in package["wheels"]}
            found.setdefault(f"{package['name']}=={package['version']}", set()).update(hashes)
    return found


def write(path: Path, found: Hashes) -> None:
    """Write requirements with their hashes, in order."""
    lines = [
        " \\\n    ".join([name, *(f"--hash=sha256:{one}" for one in sorted(found[name]))])
        for name in sorted(found)
    ]
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Write the files."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        builders: list[str] = tomllib.load(file)["build-system"]["requires"]
    extras = [f"--extra={name}" for name in EXTRAS]
    for name, found in {
        "requirements.txt": resolve("", "pyproject.toml", *extras),
        "requirements-build.txt": resolve("\n".join(builders)),
        "requirements-sbom.txt": resolve("cyclonedx-bom"),
    }.items():
        write(ROOT / "deploy" / name, found)


if __name__ == "__main__":
    main()
