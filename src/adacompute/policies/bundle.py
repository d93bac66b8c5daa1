"""Bundle: a policy with everything that its decisions need, in files that are safe to load.

    bundle.json      what it is: levels, schedule, rules, cost unit, features, model, grader, hashes
    model-N.onnx     learned models, where it has some
    tables.npz       what a sequential policy looks up

Nothing in it is executed on loading. Another format version, a missing or altered file, features of
another definition: each is refused in one sentence that says what to do. It knows nothing of how a
policy was fitted.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, Level, make_levels
from adacompute.features.text import FEATURE_SETS, VERSION
from adacompute.models.templates import Template
from adacompute.policies.episode import FIRST_SEEN, TIE_BREAKS
from adacompute.policies.inference import OnnxModel, Predictor
from adacompute.policies.policy import Policy, answers_alone
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import RouterPolicy, ValueRouterPolicy
from adacompute.policies.sequential import SequentialPolicy, load_tables, save_tables
from adacompute.policies.stopping import AdaptiveConsistencyRule, EarlyStoppingRule
from adacompute.policies.uniform import MIX_BY, FixedRule, RetryRule, Rule, RulePolicy

FORMAT = 3
FILE = "bundle.json"
TABLES = "tables.npz"
RULES: dict[str, type[FixedRule | RetryRule | AdaptiveConsistencyRule | EarlyStoppingRule]] = {
    "fixed": FixedRule,
    "retry": RetryRule,
    "adaptive-consistency": AdaptiveConsistencyRule,
    "early-stopping": EarlyStoppingRule,
}


@dataclass(frozen=True)
class FrontierPoint:
    """What a price costs and gets right on questions that were held out, with intervals."""

    price: float
    cost: float
    cost_low: float
    cost_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


@dataclass(frozen=True)
class Baseline:
    """What the training questions were like, to notice when those to come are not.

    ``mean`` and ``spread`` are of each feature; ``agreement`` is the chance that two readable
    samples of a question agree, ``unparsed`` that a sample cannot be read.
    """

    feature_mean: tuple[float, ...]
    feature_std: tuple[float, ...]
    agreement: float
    unparsed: float


@dataclass(frozen=True, eq=False)
class Bundle:
    """A policy and its circumstances.

    ``frontier`` holds the cost and accuracy of each calibrated price, highest price first.
    ``sample_cost`` is the mean cost of one sample, in the unit. ``data_hash`` is a hash of the
    training data.
    """

    policy: Policy
    unit: str = "samples"
    features: str = "paper"
    feature_version: int = 1
    model: str | None = None
    grader: str | None = None
    data_hash: str | None = None
    sample_cost: float = 1.0
    template: Template | None = None
    baseline: Baseline | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    tie_break: str = FIRST_SEEN
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def level_cost(self) -> FloatArray:
        """What each level costs from nothing, (1, K), in the unit."""
        levels = self.policy.levels
        draws = np.array([level.n_samples for level in levels], dtype=np.float64)
        if isinstance(self.policy, SequentialPolicy):
            draws = np.where(answers_alone(levels), self.policy.resort_cost, draws)
        return draws[None, :] * self.sample_cost

    @property
    def max_samples(self) -> int:
        """Samples of the largest level of the first model."""
        levels = self.policy.levels
        return max(level.n_samples for level in levels if level.model == levels[0].model)

    def price_for(self, budget: float) -> float:
        """Lowest price at which the mean cost stays within a budget, by its upper bound."""
        if not self.frontier:
            raise BundleError("the policy was not calibrated: run 'adacompute calibrate' first")
        high = np.maximum.accumulate([point.cost_high for point in self.frontier])
        if not budget >= high[0]:  # nor where it is no number
            raise BundleError(
                f"a budget of {budget:g} is below {high[0]:.6g}, the least that this policy costs"
            )
        prices = np.log([point.price for point in self.frontier])
        return float(np.exp(np.interp(budget, high, prices)))


def save_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle as a directory, whole or not at all; one that was there is replaced."""
    files = _files(bundle.policy)
    content = {
        "format": FORMAT,
        "policy": _describe(bundle.policy),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        **{
            name: getattr(bundle, name)
            for name in ("unit", "features", "feature_version", "model", "grader", "data_hash")
        },
        "sample_cost": bundle.sample_cost,
        "template": None if bundle.template is None else asdict(bundle.template),
        "baseline": None if bundle.baseline is None else asdict(bundle.baseline),
        "frontier": [asdict(point) for point in bundle.frontier],
        "tie_break": bundle.tie_break,
        "notes": bundle.notes,
    }
    path = path.resolve()
    if path.exists() and not _is_bundle(path):
        raise BundleError(f"{path} exists and is not a bundle alone: name another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        made, old = Path(beside, "made"), Path(beside, "old")
        made.mkdir()
        for name, data in files.items():
            (made / name).write_bytes(data)
        (made / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        try:
            if path.exists():
                path.rename(old)
            made.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def _is_bundle(path: Path) -> bool:
    """Whether a directory holds a bundle and nothing that would be lost with it."""
    return (path / FILE).is_file() and all(
        file.name in (FILE, TABLES) or file.match("model-*.onnx") for file in path.iterdir()
    )


def load_bundle(path: Path) -> Bundle:
    """Read a bundle, and refuse what is damaged or of another version."""
    try:
        content = json.loads((path / FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"there is no bundle at {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BundleError(f"{path / FILE} is damaged: train the policy again") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise BundleError(
            f"{path} is of bundle format {version} and this version reads {FORMAT}: "
            "train the policy again with this version"
        )
    try:
        bundle = _read(path, content)
    except BundleError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BundleError(f"{path / FILE} is damaged ({error}): train the policy again") from None
    if bundle.features not in FEATURE_SETS or bundle.feature_version != VERSION:
        raise BundleError(
            f"{path} was trained on version {bundle.feature_version} of the features "
            f"{bundle.features!r} and this version has {VERSION} of {', '.join(FEATURE_SETS)}: "
            "train the policy again with this version"
        )
    return bundle


def _read(path: Path, content: dict[str, Any]) -> Bundle:
    files = _entry(content, "files", dict)
    data = {name: _read_file(path, name, digest) for name, digest in files.items()}
    return Bundle(
        policy=_rebuild(_entry(content, "policy", dict), data),
        unit=_entry(content, "unit", str),
        features=_entry(content, "features", str),
        feature_version=_entry(content, "feature_version", int),
        model=_entry(content, "model", str | None),
        grader=_entry(content, "grader", str | None),
        data_hash=_entry(content, "data_hash", str | None),
        sample_cost=_number(content["sample_cost"]),
        template=None if content["template"] is None else read_template(content["template"]),
        baseline=_baseline(_entry(content, "baseline", dict | None)),
        frontier=tuple(
            FrontierPoint(**{name: _number(value) for name, value in point.items()})
            for point in _entry(content, "frontier", list)
        ),
        tie_break=_one_of(TIE_BREAKS, content["tie_break"]),
        notes=_entry(content, "notes", dict),
    )


def read_template(content: dict[str, Any]) -> Template:
    """Read a template as it was written down."""
    if not isinstance(content["chat"], bool):
        raise TypeError("chat is true or false")
    return Template(
        form=_entry(content, "form", str),
        system=_entry(content, "system", str | None),
        shots=tuple((str(asked), str(answered)) for asked, answered in content["shots"]),
        chat=content["chat"],
    )


def _baseline(content: dict[str, Any] | None) -> Baseline | None:
    if content is None:
        return None
    mean, spread = (
        tuple(_number(x) for x in content[name]) for name in ("feature_mean", "feature_std")
    )
    if len(mean) != len(spread):
        raise ValueError("a baseline has a mean and a spread of each feature")
    return Baseline(mean, spread, _number(content["agreement"]), _number(content["unparsed"]))


def _entry(content: dict[str, Any], name: str, kind: type | UnionType) -> Any:  # noqa: ANN401
    """Return an entry that is of this kind, as the dataclasses trust their fields to be."""
    value = content[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} cannot be a {type(value).__name__}")
    return value


def _one_of(known: tuple[str, ...], value: object) -> str:
    """Return a word that is known."""
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a number cannot be a {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"a number cannot be {value}")
    return float(value)


def _read_file(path: Path, name: str, digest: str) -> bytes:
    if Path(name).name != name:
        raise BundleError(f"{path / FILE} names a file outside of the bundle: {name!r}")
    try:
        data = (path / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{path / name} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise BundleError(f"{path / name} was altered since it was trained: train the policy again")
    return data


def _files(policy: Policy) -> dict[str, bytes]:
    """Everything of a policy that is no text."""
    if isinstance(policy, SequentialPolicy):
        return {TABLES: save_tables(policy)}
    found: tuple[Predictor, ...] = ()
    if isinstance(policy, RouterPolicy):
        found = policy.models
    elif isinstance(policy, ValueRouterPolicy):
        found = (policy.model,)
    data = {}
    for i, model in enumerate(found):
        if not isinstance(model, OnnxModel):
            raise BundleError(
                "only the tree classifier is bundled: train the router with the classifier 'gbm'"
            )
        data[f"model-{i}.onnx"] = model.data
    return data


def _describe(policy: Policy) -> dict[str, Any]:
    """Say what a policy is, its models aside."""
    content: dict[str, Any] = {"levels": [asdict(level) for level in policy.levels]}
    if isinstance(policy, RouterPolicy):
        return {"kind": "router", "prices": policy.schedule.prices, **content}
    if isinstance(policy, ValueRouterPolicy):
        return {"kind": policy.name, **content}
    if isinstance(policy, SequentialPolicy):
        costs = {"round_cost": policy.round_cost, "resort_cost": policy.resort_cost}
        return {"kind": policy.name, **costs, **content}
    if isinstance(policy, RulePolicy):
        return {
            "kind": "ruled",
            "name": policy.name,
            "prices": policy.schedule.prices,
            "rules": [_describe_rule(rule) for rule in policy.rules],
            "mix_by": policy.mix_by,
            "training_lengths": policy.training_lengths,
            "length_feature": policy.length_feature,
            **content,
        }
    raise BundleError(f"a {type(policy).__name__} cannot be bundled")


def _describe_rule(rule: Rule) -> dict[str, Any]:
    for name, kind in RULES.items():
        if isinstance(rule, kind):
            return {"rule": name, **asdict(rule)}
    raise BundleError(f"a rule of type {type(rule).__name__} cannot be bundled")


def _rebuild(content: dict[str, Any], files: dict[str, bytes]) -> Policy:
    levels = tuple(_level(level) for level in _entry(content, "levels", list))
    own = tuple(level for level in levels if level.model == levels[0].model)
    most = make_levels(tuple(level.n_samples for level in own))[-1].n_samples
    if content["kind"] == SequentialPolicy.name:
        costs = (_number(content.get(name, 0.0)) for name in ("round_cost", "resort_cost"))
        return load_tables(files[TABLES], levels, *costs)
    if own != levels:
        raise BundleError(f"a policy of kind {content['kind']!r} has levels of one model alone")
    models = [OnnxModel(data) for data in files.values()]
    if any(model.n_outputs != len(levels) for model in models):
        raise BundleError(f"a model does not score the {len(levels)} levels of its policy")
    kind = content["kind"]
    if kind == "value-router":
        if len(models) != 1:
            raise BundleError(f"a {kind} needs one model, not {len(models)}")
        return ValueRouterPolicy(levels, models[0])
    schedule = PriceSchedule(tuple(_number(price) for price in content["prices"]))
    if kind == "router":
        if len(models) != len(schedule.prices):
            raise BundleError(
                f"{len(schedule.prices)} prices need as many models, not {len(models)}"
            )
        return RouterPolicy(levels, tuple(models), schedule)
    if kind != "ruled":
        raise BundleError(f"a policy of kind {kind!r} is not known to this version")
    if content["mix_by"] not in MIX_BY:
        raise BundleError(f"mixing by {content['mix_by']!r} is not known to this version")
    rules = tuple(_rule(dict(rule), most) for rule in content["rules"])
    if len(rules) != len(schedule.prices):
        raise BundleError(f"{len(schedule.prices)} prices need as many rules, not {len(rules)}")
    return RulePolicy(
        _entry(content, "name", str),
        levels,
        rules,
        schedule,
        mix_by=content["mix_by"],
        training_lengths=tuple(_number(length) for length in content["training_lengths"]),
        length_feature=_entry(content, "length_feature", int),
    )


def _level(content: dict[str, Any]) -> Level:
    return Level(
        name=_entry(content, "name", str),
        n_samples=_entry(content, "n_samples", int),
        model=_entry(content, "model", str | None),
        settings=_entry(content, "settings", dict),
    )


def _rule(content: dict[str, Any], most: int) -> Rule:
    """Build a rule; whatever it counts is from 1 to the samples of the largest level."""
    name = content.pop("rule")
    if name not in RULES:
        raise BundleError(f"a rule {name!r} is not known to this version")
    rule: Rule = RULES[name](**content)
    counts = [_entry(content, key, int) for key in content if key != "threshold"]
    if not all(1 <= count <= most for count in counts):
        raise BundleError(f"{rule} does not fit levels of up to {most} samples")
    _number(content.get("threshold", 0.0))
    return rule
