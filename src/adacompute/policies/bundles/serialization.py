"""Serialization: policies as JSON and binary files, with one reader and one writer per kind.

To make a policy storable, add one entry to ``POLICY_KINDS``. Nothing in a stored policy is executed
when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from adacompute.core.errors import BundleError
from adacompute.core.types import Level, make_levels
from adacompute.policies import arm_mixture, router, rule_policy
from adacompute.policies.bundles import evidence_tables, sequential_tables
from adacompute.policies.policy import Policy
from adacompute.policies.sequential import policy as sequential
from adacompute.policies.spec import PolicySpec, read_entry


class PolicyKind(NamedTuple):
    """How policies of one class are written and read.

    ``has_arms`` says that levels are numbers of samples of several arms.
    """

    policy: type[Any]
    to_spec: Callable[[Any], PolicySpec]
    from_spec: Callable[[PolicySpec], Policy]
    has_arms: bool = False


POLICY_KINDS = {
    "router": PolicyKind(router.RouterPolicy, router.router_to_spec, router.router_from_spec),
    "sequential": PolicyKind(
        sequential.SequentialPolicy,
        sequential_tables.to_spec,
        sequential_tables.from_spec,
        has_arms=True,
    ),
    "arm-mixture": PolicyKind(
        arm_mixture.ArmMixture,
        evidence_tables.mixture_to_spec,
        evidence_tables.mixture_from_spec,
        has_arms=True,
    ),
    "rules": PolicyKind(rule_policy.RulePolicy, rule_policy.to_spec, rule_policy.from_spec),
}
"""Policies that can be stored, by the name of their kind in ``bundle.json``."""


def policy_to_json(policy: Policy) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the JSON object of a policy, and its binary files by name."""
    for name, kind in POLICY_KINDS.items():
        if type(policy) is kind.policy:  # a rival may derive from one, and is not saved
            spec = kind.to_spec(policy)
            levels = [asdict(level) for level in spec.levels]
            return {"kind": name, **spec.content, "levels": levels}, dict(spec.files)
    raise BundleError(f"a policy of type {type(policy).__name__} cannot be saved in a bundle")


def policy_from_json(content: Mapping[str, Any], files: Mapping[str, bytes]) -> Policy:
    """Build a policy from its JSON object and its binary files."""
    name = content["kind"]
    kind = POLICY_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BundleError(f"policy kind {name!r} is unknown to this version")
    levels = tuple(_read_level(level) for level in read_entry(content, "levels", list))
    if kind.has_arms:
        return kind.from_spec(PolicySpec(levels, content, files))
    make_levels(tuple(level.n_samples for level in levels))
    return kind.from_spec(PolicySpec(levels, content, files))


def _read_level(content: dict[str, Any]) -> Level:
    return Level(
        name=read_entry(content, "name", str),
        n_samples=read_entry(content, "n_samples", int),
        model=read_entry(content, "model", str | None),
        settings=read_entry(content, "settings", dict),
    )
