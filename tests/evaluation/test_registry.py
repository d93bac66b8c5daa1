"""Other packages register policies, which are scored beside ours and never trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacompute
from adacompute import register_policy
from adacompute.core.errors import ConfigError
from adacompute.core.types import IntArray
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_trainable, make_mixture, make_retry
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.registry import list_policies
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.report import report_run
from test_support.pools import score_pool

pytestmark = pytest.mark.usefixtures("own_policies")

PACKAGE = """
import numpy as np

import adacompute as ada
from adacompute import research


class StopWhenAgreed(ada.Policy):
    levels = ada.make_levels((1, 2, 3, 4))

    def decide(self, state, price):
        done = (state.observed.leading >= 2) | (state.observed.n_samples >= 4)
        return np.where(done & (state.level >= 0), state.level, state.level + 1)


def fit(experiment, train):
    return research.FittedPolicy(StopWhenAgreed(), (1.0,), experiment.pool.features)


def register():
    ada.register_policy("stop-when-agreed", fit)
"""
OPTIONS = ("--budgets", "3", "--levels", "1,2,4")

Install = Callable[..., dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Return how a package with an entry point is installed; it returns the environment."""

    def write(code: str, point: str = "other_policies:register") -> dict[str, str]:
        site = tmp_path / "site"
        about = site / "other_policies-1.0.dist-info"
        about.mkdir(parents=True)
        (site / "other_policies.py").write_text(code)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-policies\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[adacompute.policies]\nother = {point}\n")
        paths = [str(site), *filter(None, [os.getenv("PYTHONPATH")])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    return write


def call(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_installed_package_adds_a_row(run: Path, install: Install) -> None:
    arguments = ("-m", "adacompute", "evaluate", run, *OPTIONS, "--json")
    names = ("--policies", "mixture,stop-when-agreed")
    done = call(install(PACKAGE), *arguments, *names)
    assert (done.returncode, done.stderr) == (0, "")
    ours, other = json.loads(done.stdout)["rows"]
    assert (ours["policy"], other["policy"]) == ("mixture", "stop-when-agreed")
    assert other.keys() == ours.keys()
    assert 2.0 < other["cost"] < 3.0  # two samples that agree, or more
    assert other["accuracy"] > 0.5
    without = call({**os.environ}, *arguments, *names)
    assert without.returncode == 2
    assert "there is no policy 'stop-when-agreed'" in without.stderr


def test_an_installed_package_is_loaded_when_policies_are_listed(install: Install) -> None:
    look = "'other_policies' in sys.modules, 'adacompute.evaluation' in sys.modules"
    code = f"""
import sys, adacompute
print({look})
from adacompute.evaluation.scoring import scores
from adacompute.cli import main
print({look})
from adacompute.evaluation.registry import list_policies
print("stop-when-agreed" in list_policies(), "stop-when-agreed" in list_policies(("a", "b")))
print({look})
"""
    done = call(install(PACKAGE), "-c", code)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:4] == ["False False", "False True", "True False", "True True"]


@pytest.mark.parametrize(
    ("code", "point", "why"),
    [
        ("import nowhere", "other_policies:register", "nowhere"),
        (PACKAGE, "other_policies:missing", "missing"),
        (PACKAGE.replace('"stop-when-agreed"', '"retry"'), "other_policies:register", "'retry'"),
        ("def register(", "other_policies:register", "never closed"),
        ("register = 5", "other_policies:register", "not callable"),
    ],
    ids=["library", "function", "name", "syntax", "type"],
)
def test_a_broken_package_is_named_in_one_sentence(
    run: Path, install: Install, code: str, point: str, why: str
) -> None:
    done = call(install(code, point), "-m", "adacompute", "evaluate", run, *OPTIONS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("adacompute: the package other-policies cannot register")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.rstrip().endswith("repair or uninstall it")


@pytest.mark.parametrize("name", ["retry", "mixture-votes", "oracle", "own"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    register_policy("own", make_mixture)
    with pytest.raises(ConfigError, match=f"there is a policy '{name}' already"):
        register_policy(name, make_retry)


@pytest.mark.parametrize("name", ["", "only low", "two,three", "Mine", "-x"])
def test_a_name_that_no_option_could_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named"):
        register_policy(name, make_retry)


def test_the_same_policy_can_be_registered_again() -> None:
    before = list_policies()
    for _ in range(2):
        register_policy("own", make_retry)
    assert list_policies() == (*before[:-2], "own", *before[-2:])
    with pytest.raises(ConfigError, match="already"):
        register_policy("own", make_retry, several_arms=True)


def test_a_registered_policy_is_scored_but_not_trained(small: Pool) -> None:
    known: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2, 4), "n_permutations": 3}
    register_policy("again", make_retry)
    ours, own = score_pool(small, policies=["retry", "again"], **known).rows
    assert own == {**ours, "policy": "again"}
    with pytest.raises(ConfigError, match="again is only scored"):
        find_trainable("again")


def test_an_obstacle_leaves_a_policy_out(small: Pool) -> None:
    known: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2, 4), "n_permutations": 3}

    def explain(data: Any) -> str | None:
        return None if data.has_lengths else "samples have no length"

    register_policy("own", make_retry, find_obstacle=explain)
    with pytest.raises(ConfigError, match="own cannot be scored: samples have no length"):
        score_pool(small, policies=["own"], **known)


def test_a_policy_for_several_arms_is_listed_there_alone() -> None:
    register_policy("both", make_mixture, several_arms=True)
    assert "both" not in list_policies()
    assert "both" not in list_policies(("low",))
    assert list_policies(("low", "high"))[2:5] == ("only low", "only high", "both")


def test_a_registered_policy_is_fitted_to_training_questions_and_scored_again(run: Path) -> None:
    """Its code can change, so neither its scores nor a page with them are reused."""
    trained: list[int] = []

    def fit(experiment: Experiment, train: IntArray) -> FittedPolicy:
        trained.append(len(train))
        return make_retry(experiment, train)

    register_policy("own", fit)
    options: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2)}
    first = evaluate_run(run, policies=("own",), **options)
    assert 0 < max(trained) < 24
    once = len(trained)
    assert evaluate_run(run, policies=("own",), **options) == first
    assert len(trained) == 2 * once


def test_a_page_draws_a_registered_policy(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    register_policy("own", make_retry)
    out = tmp_path / "page.html"
    known: dict[str, Any] = {"policy": "adaptive-consistency", "levels": (1, 2)}
    report_run(run, out=out, policies=("own",), **known)
    assert ">own<" in out.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="other"):
        report_run(run, out=out, policies=("other",), **known)


def test_estimators_are_evaluated_beside_registered_policies(example: Any) -> None:
    register_policy("own", make_retry)
    scores = adacompute.evaluate(["own", "retry"], example, budgets=[2.0])
    assert [row["policy"] for row in scores.rows] == ["own", "retry"]
    assert np.isfinite(scores.rows[0]["accuracy"])


@pytest.fixture(scope="module")
def example() -> Any:
    return adacompute.read_samples("example").take(range(60))
