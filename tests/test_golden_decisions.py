"""Every policy decides exactly as it did when the golden files were made.

This guards against unintended changes. After an intended one, make the files again with the script.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adacompute.evaluation.factories import POLICY_FACTORIES

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_golden_decisions.py"
GOLDEN = Path(__file__).parent / "data" / "golden"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses need it there
    spec.loader.exec_module(module)
    return module


script = load_script()
golden: dict[str, Any] = json.loads((GOLDEN / script.DECISIONS).read_text(encoding="utf-8"))
STORED = [
    pytest.param(recording, name, marks=() if recording == "example" else pytest.mark.slow)
    for recording, found in golden["recordings"].items()
    for name in found
]


def run(recording: str, name: str, **options: Any) -> dict[str, dict[str, str]]:
    """Run a variant as the script does; skip the test where data or a library is missing."""
    files = script.RECORDINGS[recording]
    if not files.path.is_file():
        pytest.skip(f"{files.path} is not there: set ADACOMPUTE_DATA")
    for module in ("xgboost", "sklearn", "onnx", "onnxruntime"):
        pytest.importorskip(module, reason="needs the extra 'train'")
    decisions: dict[str, dict[str, str]] = script.run_recording(recording, name, **options)
    return decisions


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """List every number that differs: its price or budget, its field, and its row."""
    listed = [f"{at} is on one side only" for at in sorted(expected.keys() ^ found.keys())]
    for at in expected.keys() & found.keys():
        old, new = expected[at], found[at]
        listed += [f"{at} {field} is on one side only" for field in sorted(old.keys() ^ new.keys())]
        for field in old.keys() & new.keys():
            if isinstance(old[field], str):
                pairs = enumerate(zip_longest(old[field].split(), new[field].split()))
                listed += [f"{at} {field} row {i}: {a} became {b}" for i, (a, b) in pairs if a != b]
            elif old[field] != new[field]:
                listed.append(f"{at} {field}: {old[field]} became {new[field]}")
    return sorted(listed)


def summarise(listed: list[str]) -> str:
    return "\n".join([f"{len(listed)} numbers differ", *listed[:20]])


def test_golden_file_covers_every_policy_and_recording() -> None:
    assert list(golden["recordings"]) == list(script.RECORDINGS)
    for recording, found in golden["recordings"].items():
        assert list(found) == script.list_variants(recording)
        assert set(POLICY_FACTORIES) < set(found)


@pytest.mark.parametrize(("recording", "name"), STORED)
def test_policy_decisions_are_unchanged(recording: str, name: str) -> None:
    listed = differences(golden["recordings"][recording][name], run(recording, name))
    assert not listed, summarise(listed)


def test_replay_of_gateway_log_is_unchanged() -> None:
    listed = differences(golden["gateway_log"], script.replay_gateway_log(GOLDEN / script.LOG))
    assert not listed, summarise(listed)


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_higher_prices_change_decisions(name: str) -> None:
    stored = golden["recordings"]["example"][name]
    raised = run("example", name, prices=[1.5 * price for price in script.PRICES])
    assert differences(stored, dict(zip(stored, raised.values(), strict=True))) != []


def test_budgets_ten_percent_higher_change_replay_of_gateway_log() -> None:
    budgets = [1.1 * budget for budget in script.LOG_BUDGETS]
    raised = script.replay_gateway_log(GOLDEN / script.LOG, budgets)
    found = dict(zip(golden["gateway_log"], raised.values(), strict=True))
    assert differences(golden["gateway_log"], found) != []
