"""What is published: versions agree, links lead to files, and what is installed is pinned."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.hash_requirements import EXTRAS
from scripts.project_metadata import ProjectMetadata

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
URL = "https://git.example.com/adacompute"


def name_of(requirement: str) -> str:
    (name,) = re.findall(r"^[\w.-]+", requirement)
    return str(name).lower().replace("_", "-")


def read_requirements(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes by the name of the package; fail at anything else."""
    lines = (ROOT / "deploy" / name).read_text().replace("\\\n", "").splitlines()
    found = {}
    for line in lines[1:]:
        requirement, *hashes = line.split()
        package, version = requirement.split("==")
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
        found[package] = version, hashes
    return found


def make_metadata() -> dict[str, Any]:
    metadata: dict[str, Any] = {"version": VERSION}
    ProjectMetadata(str(ROOT), {}).update(metadata)
    return metadata


def test_versions_agree() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/adacompute/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {VERSION}
    log = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(VERSION)} - ", log, re.MULTILINE)
    for page in (ROOT / "README.md", ROOT / "docs/get-started.md"):
        assert f"adacompute-{VERSION}-py3-none-any.whl" in page.read_text()


def test_every_python_that_is_named_is_tested_by_ci() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    assert named <= set(re.findall(r"container: python:(3\.\d+)-", ci))
    assert f">={min(named, key=lambda one: int(one[2:]))}" == PROJECT["requires-python"]


def test_examples_run_the_image_of_this_version() -> None:
    for name in ("kubernetes.yaml", "compose.yaml"):
        images = re.findall(r"image: (adacompute\S+)", (ROOT / "deploy" / name).read_text())
        assert images == [f"adacompute:{VERSION}"]


def test_the_image_installs_by_hashes_and_does_not_run_as_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install ([^&\n]+)", text)
    assert len(installs) == 3
    assert all(one.startswith(("--require-hashes", "--no-index --no-deps")) for one in installs)
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000:1000"]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for path in " ".join(copied).split():
        assert any(fnmatch(path, one[1:]) for one in allowed if one.startswith("!")), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_use_pinned_actions_and_few_permissions(path: Path) -> None:
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for used in re.findall(r"uses: (.*)", text):
        assert re.match(r"\./|[\w./-]+@[0-9a-f]{40} # v[\d.]+$", used), used
    assert "secrets." not in text
    may_publish = {
        name for name, job in workflow["jobs"].items() if "write" in str(job.get("permissions"))
    }
    assert may_publish <= {"package", "image", "notes"}
    for name in may_publish & {"package", "image"}:
        assert workflow["jobs"][name]["environment"] == "release"
        assert workflow["jobs"][name]["needs"] == ["test", "build"]


def test_no_advice_installs_the_two_compromised_versions_of_litellm() -> None:
    folders = (ROOT / "docs", ROOT / "integrations")
    files = [p for f in folders for end in ("md", "txt") for p in f.rglob(f"*.{end}")]
    advice = [
        one
        for path in files
        if "_build" not in path.parts
        for one in re.findall(r"litellm(?:\[\w+\])?[<>=!][^' \n]*", path.read_text())
    ]
    assert len(advice) >= 4
    assert all("!=1.82.7" in one and "!=1.82.8" in one for one in advice), advice


def test_a_release_links_to_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_URL", f"{URL}/")
    metadata = make_metadata()
    assert metadata["urls"]["Changelog"] == f"{URL}/blob/v{VERSION}/CHANGELOG.md"
    assert metadata["urls"]["Source"] == URL
    targets = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    for target in targets:
        start = re.match(rf"{URL}/(raw|blob)/v{VERSION}/|#|https?://", target)
        assert start, target
        if target.startswith(URL):
            path = target[start.end() :].partition("#")[0]
            assert (ROOT / path).exists(), target
    assert any("/raw/" in one for one in targets)


def test_without_an_address_the_readme_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROJECT_URL", raising=False)
    metadata = make_metadata()
    assert "urls" not in metadata
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()


@pytest.mark.parametrize("part", ["", "-build", "-sbom"])
def test_requirements_have_hashes_and_the_versions_of_ci(part: str) -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in constraints if not line.startswith("#"))
    for name, (version, hashes) in read_requirements(f"requirements{part}.txt").items():
        assert hashes, name
        assert version == pinned.get(name, version)


def test_the_image_has_what_the_gateway_needs() -> None:
    extras = PROJECT["optional-dependencies"]
    needed = [
        *PROJECT["dependencies"],
        *(one for e in EXTRAS for one in extras[e]),
    ]
    assert {name_of(one) for one in needed} <= set(read_requirements("requirements.txt"))
