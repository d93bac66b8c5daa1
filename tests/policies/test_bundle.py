from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import BundleError, InfeasibleBudget
from adacompute.core.types import Float32Array, IntArray, UtilityTable, make_levels
from adacompute.features.text import VERSION
from adacompute.models.messages import Settings
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, load_bundle, save_bundle
from adacompute.policies.bundles.bundle_files import FILE, locate_file
from adacompute.policies.policy import ObservedSamples, Policy, SampleMatrix, State
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule, VoteLeadRule
from adacompute.policies.uniform import FixedRule

LEVELS = make_levels((1, 2, 4))
FRONTIER = (
    FrontierPoint(1.4, 0.2, 1.4, 1.3, 1.5, 0.6, 0.5, 0.7, 1.2),
    FrontierPoint(2.8, 0.05, 2.8, 2.6, 3.0, 0.7, 0.6, 0.8, 2.0),
)
RULES = RulePolicy(
    "all",
    LEVELS,
    (
        FixedRule(1),
        VoteLeadRule(1, 3),
        AdaptiveConsistencyRule(0.9, 4),
        FixedRule(3),
        VoteLeadRule(2, 4),
    ),
    PriceSchedule((0.4, 0.2, 0.1, 0.05, 0.02)),
)


@pytest.fixture(scope="session")
def learned() -> dict[str, Policy]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 2)).astype(np.float32)
    table = UtilityTable(np.sort(rng.random((60, 3)), axis=1), np.array([1.0, 2.0, 4.0]))
    return {
        "router": fit_router(features, table, LEVELS, RouterTraining(budgets=(1.5, 2.5))),
        "rules": RULES,
    }


@pytest.fixture(scope="session")
def contents(
    learned: dict[str, Policy], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return bundles of every kind: their paths and JSON contents."""
    root = tmp_path_factory.mktemp("bundles")
    for kind, policy in learned.items():
        save_bundle(Bundle(policy, frontier=FRONTIER), root / kind)
    return {kind: (root / kind, json.loads((root / kind / FILE).read_text())) for kind in learned}


def altered(source: Path, path: Path, **changes: Any) -> Path:
    """Copy a bundle and change entries of its JSON."""
    path.mkdir()
    for file in source.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    content = json.loads((path / FILE).read_text())
    for name, value in changes.items():
        at = content
        *parents, last = name.split("__")
        for parent in parents:
            at = at[int(parent) if isinstance(at, list) else parent]
        at[last] = value
    (path / FILE).write_text(json.dumps(content))
    return path


def check_rejected(path: Path, why: str) -> None:
    with pytest.raises(BundleError, match=why) as caught:
        load_bundle(path)
    assert "\n" not in str(caught.value)


def test_a_bundle_round_trips(tmp_path: Path) -> None:
    saved = Bundle(
        RULES,
        unit="tokens",
        features="words",
        feature_version=VERSION,
        model="m",
        grader="math",
        data_hash="abc",
        settings=Settings(0.5, 0.9, None, ("\n", "Q:"), "low", extra={"top_k": 3}),
        frontier=FRONTIER,
        notes={"questions": 7, "text": "é"},
    )
    save_bundle(saved, tmp_path / "deep" / "p")
    loaded = load_bundle(tmp_path / "deep" / "p")
    assert loaded.policy == RULES
    names = (
        "unit",
        "features",
        "feature_version",
        "model",
        "grader",
        "data_hash",
        "settings",
        "frontier",
        "notes",
    )
    assert [getattr(loaded, n) for n in names] == [getattr(saved, n) for n in names]


@pytest.mark.parametrize("kind", ["router", "rules"])
def test_a_loaded_policy_makes_the_same_decisions(
    learned: dict[str, Policy],
    contents: dict[str, tuple[Path, dict[str, Any]]],
    sequences: IntArray,
    kind: str,
) -> None:
    loaded = load_bundle(contents[kind][0]).policy
    rng = np.random.default_rng(1)
    at = rng.integers(-1, 3, 500)
    state = State(
        key=rng.integers(0, 2**63, 500, dtype=np.uint64),
        features=loaded.prepare_features(rng.normal(size=(500, 2)).astype(np.float32)),
        cost=rng.random((500, 3)),
        observed=ObservedSamples(
            SampleMatrix(sequences), np.arange(500), np.array([0, 1, 2, 4])[at + 1]
        ),
        level=at,
        rounds_left=np.ones(500, dtype=np.int64),
    )
    for price in (1.0, 0.3, 0.15, 0.07, 0.001):
        assert (loaded.decide(state, price) == learned[kind].decide(state, price)).all()


def test_saving_is_deterministic(learned: dict[str, Policy], tmp_path: Path) -> None:
    for kind, policy in learned.items():
        save_bundle(Bundle(policy), tmp_path / "a")
        save_bundle(Bundle(policy), tmp_path / "b")
        a, b = (
            {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
            for name in ("a", "b")
        )
        assert a == b, kind


def test_a_bundle_contains_only_json_and_arrays(
    contents: dict[str, tuple[Path, dict[str, Any]]],
) -> None:
    for path, _ in contents.values():
        for file in path.iterdir():
            assert file.name == FILE or file.suffix == ".npz"
            assert not file.read_bytes().startswith(b"\x80")  # how a pickle begins


def test_a_missing_bundle_is_rejected(tmp_path: Path) -> None:
    check_rejected(tmp_path / "none", "there is no bundle at .*none: No such file or directory")


@pytest.mark.parametrize(
    "text", ["", "{", '{"format": 1,', "\xff", "[" * 200_000, '{"format": ' + "9" * 5000 + "}"]
)
def test_invalid_json_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    check_rejected(tmp_path, "is damaged: run 'adacompute fit' again")


@pytest.mark.parametrize("text", ["[]", "null", '"bundle"', "{}", '{"format": 2}', '{"format": 3}'])
def test_other_format_versions_are_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    check_rejected(tmp_path, "format (None|2|3), .* format 9: run 'adacompute fit' again")


SETTINGS = asdict(Settings())


@pytest.mark.parametrize(
    ("kind", "name", "value", "why"),
    [
        ("rules", "unit", 3, "damaged .unit cannot be a int"),
        ("rules", "notes", [], "damaged .notes cannot be a list"),
        ("rules", "model", 1.5, "damaged .model cannot be a float"),
        ("rules", "settings", [0.7], "damaged"),
        ("rules", "settings", SETTINGS | {"temperature": -1}, "damaged .*-1"),
        ("rules", "settings", SETTINGS | {"max_tokens": 1.5}, "max_tokens cannot be a float"),
        ("rules", "settings", SETTINGS | {"stop": "\n"}, "stop cannot be a str"),
        ("rules", "settings", SETTINGS | {"logprobs": 1}, "logprobs"),
        ("rules", "policy", "fixed", "damaged .policy cannot be a str"),
        ("rules", "files", ["tables.npz"], "damaged .files cannot be a list"),
        ("rules", "frontier", [{"price": "1"}], "damaged .a number cannot be a str"),
        ("rules", "frontier", [{"price": 1}], "damaged"),
        ("rules", "frontier", [[1, 2, 3]], "damaged"),
        ("rules", "feature_version", 99, "version 99 of the features 'paper'"),
        ("rules", "features", "wise", "'wise'"),
        ("rules", "policy__kind", "oracle", "kind 'oracle' is unknown"),
        ("rules", "policy__mix_by", "luck", "'luck' is none of key, none"),
        ("rules", "policy__levels", [], "increasing numbers of samples"),
        ("rules", "policy__levels__2__model", "large", "levels of several models .None, large."),
        ("rules", "policy__levels__0__n_samples", 9, "increasing numbers of samples"),
        ("rules", "policy__levels__0__n_samples", "1", "n_samples cannot be a str"),
        ("rules", "policy__levels__0__n_samples", True, "n_samples cannot be a bool"),
        ("rules", "policy__prices", [0.4, 0.5, 0.1, 0.05], "decreasing"),
        ("rules", "policy__prices", [math.inf, 0.2, 0.1, 0.05], "a number cannot be inf"),
        ("rules", "sample_cost", math.nan, "damaged .a number cannot be nan"),
        ("rules", "frontier", [{"price": math.nan}], "damaged .a number cannot be nan"),
        ("rules", "policy__prices", [10**400, 0.2, 0.1, 0.05], "damaged .int too large"),
        ("rules", "policy__prices", [0.4, 0.2], "2 prices need as many rules, got 5"),
        ("rules", "policy__rules__0__rule", "best", "rule 'best' is unknown"),
        ("rules", "policy__rules__0__rule", ["fixed"], "damaged"),
        ("rules", "policy__rules__0__n_samples", 2.5, "n_samples cannot be a float"),
        ("rules", "policy__rules__0__n_samples", 0, "does not fit levels of up to 4 samples"),
        ("rules", "policy__rules__2__max_samples", 10**9, "does not fit levels of up to 4 samples"),
        ("rules", "policy__rules__2__threshold", "0.9", "a number cannot be a str"),
        ("rules", "policy__rules__4__lead", 0, "does not fit levels of up to 4 samples"),
        ("rules", "policy__rules__1__window", 2, "damaged .*unexpected keyword argument"),
        ("router", "policy__prices", [0.4, 0.3, 0.2], "need the arrays children"),
        ("router", "policy__prices", [0.4], "1 prices, and trees for another"),
        ("router", "files", {}, "damaged .*tables.npz"),
        ("router", "files", {"../rules/bundle.json": "0"}, "names a file outside of the"),
        ("router", "files", {"/etc/passwd": "0"}, "names a file outside of the"),
        ("router", "files", {"..": "0"}, "cannot be read: No such file"),
        ("router", "files", {"tables-7.npz": "0"}, "cannot be read: No such file"),
        ("router", "files", {"tables\0": "0"}, "damaged .*null (byte|character)"),
        ("router", "files", {"tables.npz": None}, "damaged .*NoneType"),
    ],
)
def test_invalid_entries_are_rejected_in_one_sentence(
    contents: dict[str, tuple[Path, dict[str, Any]]],
    tmp_path: Path,
    kind: str,
    name: str,
    value: Any,
    why: str,
) -> None:
    check_rejected(altered(contents[kind][0], tmp_path / "b", **{name: value}), why)


def test_a_changed_model_is_rejected(
    contents: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    path = altered(contents["router"][0], tmp_path / "b")
    (model,) = path.glob("tables-*.npz")
    model.write_bytes(model.read_bytes() + b"\0")
    check_rejected(
        path,
        "tables-.*npz was changed after training: run 'adacompute fit' again",
    )


def test_a_model_of_other_levels_is_rejected(
    contents: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    path, content = contents["router"]
    two = content["policy"]["levels"][:2]
    check_rejected(
        altered(path, tmp_path / "b", policy__levels=two),
        "they do not score the 2 levels of their policy",
    )


def test_a_file_that_is_no_model_is_rejected(
    contents: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"evil").hexdigest()
    path = altered(contents["router"][0], tmp_path / "b", files={"tables.npz": digest})
    locate_file(path, "tables.npz", digest).write_bytes(b"evil")
    check_rejected(path, "the file of tables is damaged")


def branches(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all entries of a JSON document."""
    found: list[tuple[Any, ...]] = []
    if isinstance(content, list):
        content = dict(enumerate(content))
    for name, value in content.items() if isinstance(content, dict) else ():
        found += [(*path, name), *branches(value, (*path, name))]
    return found


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**400), 10**400),
        st.integers(-3, 20),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["router", "fixed", "key", "tables.npz", ".", "/", "\0"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data())
def test_mutated_json_loads_or_raises_bundle_error(
    contents: dict[str, tuple[Path, dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    source, content = contents[data.draw(st.sampled_from(sorted(contents)))]
    content = copy.deepcopy(content)
    for _ in range(data.draw(st.integers(1, 2))):
        *parents, last = data.draw(st.sampled_from(branches(content)))
        at = content
        for parent in parents:
            at = at[parent]
        if data.draw(st.booleans()):
            del at[last]
        else:
            at[last] = data.draw(JUNK)
    text = json.dumps(content)
    text = text[: data.draw(st.sampled_from([len(text), len(text) // 2]))]
    path = tmp_path_factory.mktemp("mutant")
    for file in source.glob("*.npz"):
        (path / file.name).write_bytes(file.read_bytes())
    (path / FILE).write_text(text)
    said = ""
    try:
        load_bundle(path)
    except BundleError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize("there", ["a file", "a directory", "a bundle and more"])
def test_other_files_are_not_overwritten(tmp_path: Path, there: str) -> None:
    path = tmp_path / "p"
    if there == "a file":
        path.write_text("mine")
    elif there == "a directory":
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
    else:
        save_bundle(Bundle(RULES), path)
        (path / "thesis.txt").write_text("mine")
    with pytest.raises(BundleError, match="use another path"):
        save_bundle(Bundle(RULES), path)
    mine = path if there == "a file" else path / "thesis.txt"
    assert mine.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["p"]


def test_a_bundle_is_replaced_through_a_symlink(learned: dict[str, Policy], tmp_path: Path) -> None:
    path, link = tmp_path / "p", tmp_path / "link"
    save_bundle(Bundle(learned["router"]), path)
    link.symlink_to(path)
    save_bundle(Bundle(RULES), link)
    assert load_bundle(path).policy == RULES
    assert link.is_symlink()
    assert [file.name for file in path.iterdir()] == [FILE]


@pytest.mark.parametrize("fails", [FILE, "tables"])
def test_a_failed_write_keeps_the_old_bundle(
    learned: dict[str, Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "p"
    save_bundle(Bundle(RULES), path)
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target.name.startswith(fails):
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save_bundle(Bundle(learned["router"]), path)
    with pytest.raises(OSError, match="No space left"):
        save_bundle(Bundle(learned["router"]), tmp_path / "other")
    assert load_bundle(path).policy == RULES
    assert list(tmp_path.rglob("*")) == [path, path / FILE]


def test_policies_that_cannot_be_loaded_are_not_saved(tmp_path: Path) -> None:
    class Custom(Policy):
        levels = LEVELS

        def prepare_features(self, features: Float32Array) -> Float32Array:
            raise NotImplementedError

        def decide(self, state: State, price: float) -> IntArray:
            raise NotImplementedError

    class Whim:
        decides_once: ClassVar[bool] = False

        def target_samples(self, observed: ObservedSamples) -> IntArray:
            raise NotImplementedError

    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 2)).astype(np.float32)
    table = UtilityTable(np.sort(rng.random((60, 3)), axis=1), np.array([1.0, 2.0, 4.0]))
    logistic = fit_router(
        features, table, LEVELS, RouterTraining(budgets=(1.5,), classifier="logistic")
    )
    for policy, why in (
        (Custom(), "Custom cannot be saved"),
        (
            RulePolicy("whim", LEVELS, (Whim(),), PriceSchedule((1.0,))),
            "Whim cannot be saved",
        ),
        (logistic, "only the classifier 'gbm'"),
    ):
        with pytest.raises(BundleError, match=why):
            save_bundle(Bundle(policy), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_price_for_interpolates_between_calibrated_budgets() -> None:
    bundle = Bundle(RULES, frontier=FRONTIER)
    assert [bundle.price_for(budget) for budget in (1.4, 2.8, 9.0)] == [0.2, 0.05, 0.05]
    assert bundle.price_for(2.1) == pytest.approx(0.1)
    with pytest.raises(InfeasibleBudget, match=r"1\.3 is below 1\.4"):
        bundle.price_for(1.3)
    with pytest.raises(InfeasibleBudget, match="nan"):
        bundle.price_for(math.nan)
    with pytest.raises(BundleError, match="'adacompute fit'"):
        Bundle(RULES).price_for(2.0)


def test_verdicts_and_prices_of_earlier_calibrations_are_kept() -> None:
    earlier = {"budget": 2.0, "verdict": "gain", "price": 0.123}
    notes = {
        "calibration": {"budget": 2.5, "verdict": "inconclusive", "price": 0.07},
        "earlier_calibrations": [earlier],
    }
    bundle = Bundle(RULES, frontier=FRONTIER, notes=notes)
    assert [bundle.verdict(b) for b in (2.0, 2.5, 2.7)] == ["gain", "inconclusive", "not judged"]
    assert (bundle.price_for(2.0), bundle.price_for(2.5)) == (0.123, 0.07)
    assert 0.05 < bundle.price_for(2.7) < 0.2
