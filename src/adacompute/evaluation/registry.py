"""Registry: the policies of other packages, which are scored beside our own.

A package calls `register_policy`, or names a function that does in the entry-point group
``adacompute.policies``. These functions are called when names are listed for the first time, not
when this package is imported. Registered policies are rows of tables: they cannot be trained or
served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points

from adacompute.core.errors import ConfigError
from adacompute.evaluation.experiment import PolicyFactory
from adacompute.evaluation.factories import (
    BASELINES,
    POLICY_FACTORIES,
    REGISTERED,
    RegisteredPolicy,
    only_arms,
)
from adacompute.evaluation.recorded_data import RecordedData

GROUP = "adacompute.policies"
"""Entry points of other packages: functions without arguments that register policies."""

ORACLES = ("oracle", "oracle-in-sample")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
FAILURES = (
    *(AttributeError, ImportError, LookupError, NameError, OSError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What is expected of a package that is broken; a ConfigError is a ValueError."""


def register_policy(
    name: str,
    factory: PolicyFactory,
    *,
    several_arms: bool = False,
    find_obstacle: Callable[[RecordedData], str | None] = lambda _: None,
) -> None:
    """Add a policy to the tables of `evaluate` and `report`, under a name that is not taken.

    ``factory`` fits it: it takes an `Experiment` and the rows of its training questions, and
    returns a `FittedPolicy`. The policy is for runs with one arm, or with ``several_arms``.
    ``find_obstacle`` says why it cannot be scored with what a run has recorded; None if it can.
    Registering the same policy again changes nothing.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a policy cannot be named {name!r}: use lower-case words joined by hyphens"
        )
    policy = RegisteredPolicy(factory, several_arms, find_obstacle)
    if name in {*POLICY_FACTORIES, *BASELINES, *ORACLES} or REGISTERED.get(name, policy) != policy:
        raise ConfigError(f"there is a policy {name!r} already: use another name")
    REGISTERED[name] = policy


def list_policies(arms: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of all policies that are scored in a run with these arms, or with one."""
    _load_packages()
    several = len(arms) > 1
    own = [name for name, policy in REGISTERED.items() if policy.several_arms == several]
    if several:
        return (
            "mixture-votes",
            "mixture",
            *only_arms(arms),
            *own,
            "sequential",
            "oracle",
        )
    return (*BASELINES, *POLICY_FACTORIES, *own, *ORACLES)


def find_obstacle(name: str, data: RecordedData) -> str | None:
    """Return why a registered policy cannot be scored; None if it can, or for our own policies."""
    policy = REGISTERED.get(name)
    return None if policy is None else policy.find_obstacle(data)


def check_policies(names: Iterable[str], data: RecordedData) -> None:
    """Refuse policies that need more than what was recorded."""
    for name in names:
        if reason := find_obstacle(name, data):
            raise ConfigError(f"{name} cannot be scored: {reason}")


def has_registered(names: Sequence[str]) -> bool:
    """Whether policies of other packages are among some; their code can change at any time."""
    return not REGISTERED.keys().isdisjoint(names)


@cache
def _load_packages() -> None:
    """Let other packages register their policies, once."""
    for point in entry_points(group=GROUP):
        try:
            point.load()()
        except FAILURES as error:
            package = point.dist.name if point.dist else point.value
            raise ConfigError(
                f"the package {package} cannot register its policies ({error}): repair or "
                "uninstall it"
            ) from error
