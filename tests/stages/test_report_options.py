"""A report knows the bundle that its run is inside of."""

from __future__ import annotations

from pathlib import Path

import pytest

import adacompute as ada
from adacompute.stages.report_options import find_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    ada.Mixture().fit(ada.read_samples("example")).save(tmp_path / "policy")
    return tmp_path / "policy"


def test_the_bundle_of_a_run_is_the_directory_around_it(bundle: Path, tmp_path: Path) -> None:
    assert find_bundle(bundle / "run", "mixture") == bundle
    assert find_bundle(tmp_path / "run", "mixture") is None
    assert find_bundle(bundle / "run", "sequential") is None  # it holds another policy
    (bundle / "bundle.json").write_text("{}")  # what another version wrote
    assert find_bundle(bundle / "run", "mixture") is None
