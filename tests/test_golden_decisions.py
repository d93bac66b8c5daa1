"""Every policy decides exactly as it did when the golden files were made, on every path.

This guards against unintended changes. After an intended one, make the files again with the script.
Prices, costs and decisions must not change at all; accuracies and intervals may by rounding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from adacompute.batch import stream
from adacompute.batch.planning import plan_output
from adacompute.batch.planning.first_actions import find_first_actions
from adacompute.batch.planning.plan import CostCurve
from adacompute.core.errors import DataError
from adacompute.evaluation.factories import TRAINABLE
from adacompute.evaluation.replay import Replay, ReplayResult
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.gateway.voting.engine import Engine
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.sampling import loop, session
from adacompute.sampling.blocks import QuestionProgress
from adacompute.stages import calibrate as calibrate_stage
from scripts import make_golden_decisions as script
from test_support import golden_sets
from test_support.decision_paths import MEASURED, serve_deciding

pytest.importorskip("xgboost", reason="needs the extra 'router'")
for library in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(library, reason="needs the extra 'serve'")

golden: dict[str, Any] = json.loads(
    (golden_sets.DATA / script.DECISIONS).read_text(encoding="utf-8")
)
QUICK = ("svamp144", "mcqa")
STORED = [
    pytest.param(name, variant, path, marks=() if name in QUICK else pytest.mark.slow)
    for name, variants in golden["sets"].items()
    for variant, paths in variants.items()
    for path in paths
]
TOLERANCE = 1e-9

# A gateway tries its policies on made-up samples before it serves, which have no log-probabilities.
pytestmark = pytest.mark.filterwarnings("ignore:the policy weighs samples by")


@pytest.fixture(scope="module")
def serve() -> Iterator[script.Serve]:
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(serve_deciding(name)))


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """List every value that differs: its price or budget, its field, and its row."""
    listed = [f"{at} is on one side only" for at in sorted(expected.keys() ^ found.keys())]
    for at in expected.keys() & found.keys():
        old, new = expected[at], found[at]
        listed += [f"{at} {field} is on one side only" for field in sorted(old.keys() ^ new.keys())]
        for field in old.keys() & new.keys():
            if isinstance(old[field], str):
                pairs = enumerate(zip_longest(old[field].split(), new[field].split()))
                listed += [f"{at} {field} row {i}: {a} became {b}" for i, (a, b) in pairs if a != b]
            elif not is_same(field, old[field], new[field]):
                listed.append(f"{at} {field}: {old[field]} became {new[field]}")
    return sorted(listed)


def is_same(field: str, old: Any, new: Any) -> bool:
    if field in MEASURED:
        return math.isclose(old, new, rel_tol=0.0, abs_tol=TOLERANCE)
    return bool(old == new)


def summarise(listed: list[str]) -> str:
    return "\n".join([f"{len(listed)} values differ", *listed[:20]])


def compare(name: str, variant: str, path: str, serve: script.Serve) -> list[str]:
    found = script.decide(path, name, variant, serve)
    return differences(golden["sets"][name][variant][path], found)


def test_golden_file_covers_every_policy_set_and_path() -> None:
    assert list(golden["sets"]) == list(golden_sets.SETS)
    for name, found in golden["sets"].items():
        known = golden_sets.SETS[name]
        assert list(found) == [*known.variants, *script.RIVALS_OF.get(name, ())]
        assert known.arms or set(TRAINABLE) < set(found)
        for variant, paths in found.items():
            assert list(paths) == script.list_paths(name, variant)
    covered = {one for golden_set in golden_sets.SETS.values() for one in golden_set.calibrated}
    assert set(TRAINABLE) < covered


def test_set_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(golden_sets.SETS["mcqa"], path=golden_sets.DATA / "missing.parquet")
    monkeypatch.setitem(golden_sets.SETS, "gone", missing)
    with pytest.raises(DataError, match=r"missing\.parquet"):
        golden_sets.import_set("gone")


@pytest.mark.parametrize(("name", "variant", "path"), STORED)
def test_decisions_are_unchanged(name: str, variant: str, path: str, serve: script.Serve) -> None:
    listed = compare(name, variant, path, serve)
    assert not listed, summarise(listed)


def test_sampler_gateway_and_batch_decide_alike() -> None:
    """They get the same samples; a gateway and a batch get each question at one of the prices."""
    unlike = set()
    for variants in golden["sets"].values():
        for variant, paths in variants.items():
            for i, (label, every) in enumerate(paths.get("sampler", {}).items()):
                for path in ("gateway", "batch"):
                    for field, line in paths[path][label].items():
                        if line.split() != every[field].split()[i :: len(golden_sets.PRICES)]:
                            unlike.add((variant, path))
    assert unlike == set()


@pytest.mark.parametrize("variant", golden_sets.SETS["example"].variants)
def test_stored_decisions_depend_on_the_price(variant: str) -> None:
    stored = golden["sets"]["example"][variant]["session"].values()
    assert len({json.dumps(one) for one in stored}) > 1


def test_rounding_of_a_measure_is_no_difference() -> None:
    stored = {"budget 2": {"price": 0.1, "accuracy": 0.5}}
    assert differences(stored, {"budget 2": {"price": 0.1, "accuracy": 0.5 + 1e-10}}) == []
    assert differences(stored, {"budget 2": {"price": 0.1, "accuracy": 0.5 + 1e-8}}) != []
    assert differences(stored, {"budget 2": {"price": np.nextafter(0.1, 1), "accuracy": 0.5}}) != []


# One change per path: each of these changes what one place decides, and must be found.

Mutate = Callable[[pytest.MonkeyPatch], None]


def one_more_sample(name: str) -> Mutate:
    """Add a sample to one question in a method of the replay."""
    real = getattr(Replay, name)

    def mutated(*args: Any) -> ReplayResult:
        result: ReplayResult = real(*args)
        n_samples = result.n_samples.copy()
        n_samples.flat[0] += 1
        return replace(result, n_samples=n_samples)

    return lambda patch: patch.setattr(Replay, name, mutated)


def stop_one_order_early(patch: pytest.MonkeyPatch) -> None:
    real = SequentialPolicy.find_ends

    def mutated(*args: Any) -> Any:
        ends = real(*args)
        ends.position[0] -= 1
        return ends

    patch.setattr(SequentialPolicy, "find_ends", mutated)


def stop_once(module: Any, name: str) -> Mutate:
    """Make the first decision to go on with a sample one to stop."""
    real = getattr(module, name)
    stopped: list[QuestionProgress] = []

    def mutated(given: Any) -> Any:
        listed = [given] if isinstance(given, QuestionProgress) else list(given)
        result = real(given if isinstance(given, QuestionProgress) else listed)
        for one in listed:
            if not stopped and one.answers and one.is_active:
                stopped.append(one)
                one.is_active = False
        return result

    return lambda patch: patch.setattr(module, name, mutated)


def one_more_at_first(patch: pytest.MonkeyPatch) -> None:
    def mutated(*args: Any) -> Any:
        actions = find_first_actions(*args)
        n_samples = actions.n_samples.copy()
        n_samples[-1] += 1
        return actions._replace(n_samples=n_samples)

    patch.setattr(plan_output, "find_first_actions", mutated)


def next_price(patch: pytest.MonkeyPatch) -> None:
    real = CostCurve.price_at
    patch.setattr(CostCurve, "price_at", lambda *args: float(np.nextafter(real(*args), 1)))


def change_calibration(field: str, change: Callable[[Any], Any]) -> Mutate:
    def mutated(*args: Any, **known: Any) -> dict[str, Any]:
        found = calibrate(*args, **known)
        return found | {field: change(found[field])}

    return lambda patch: patch.setattr(calibrate_stage, "calibrate", mutated)


def one_round(module: Any, name: str) -> Mutate:
    """Let sessions end after one round."""
    return lambda patch: patch.setattr(module, name, partial(session.Session, max_rounds=1))


def limit_rounds_of_gateway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_max_rounds", lambda _: 1)


MUTATIONS: dict[str, tuple[str, str, Mutate]] = {
    "replay by index": ("sequential", "replay", one_more_sample("_run_index")),
    "replay by episode": ("adaptive-consistency", "replay", one_more_sample("_run_episode")),
    "replay of evidence": ("sequential-confidence", "replay", stop_one_order_early),
    "session": ("sequential", "session", stop_once(session, "decide")),
    "sampler": ("sequential", "sampler", stop_once(loop, "decide_by_lookup")),
    "gateway": ("sequential", "gateway", limit_rounds_of_gateway),
    "first actions of a batch": ("sequential", "batch", one_more_at_first),
    "price of a batch": ("sequential", "batch", next_price),
    "later decisions of a batch": ("sequential", "batch", one_round(stream, "Session")),
    "price": ("mixture", "calibrate", change_calibration("price", lambda x: np.nextafter(x, 1))),
    "cost": ("mixture", "calibrate", change_calibration("cost", lambda x: np.nextafter(x, 9))),
    "verdict": ("mixture", "calibrate", change_calibration("verdict", lambda _: "gain")),
}


@pytest.mark.parametrize("change", MUTATIONS)
def test_changed_decision_is_found(
    change: str, serve: script.Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, path, mutate = MUTATIONS[change]
    name = "svamp144" if variant == "sequential-confidence" else "mcqa"
    assert compare(name, variant, path, serve) == []  # fits, and whatever is kept, come before
    mutate(monkeypatch)
    assert compare(name, variant, path, serve) != []
