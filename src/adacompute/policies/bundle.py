"""Bundle: a policy with everything that its decisions need, in files that are safe to load.

    bundle.json      what it is: levels, dial and rules, cost unit, features, model, grader, hashes
    model-N.onnx     learned models, where it has some

Nothing in it is executed on loading. Another format version, a missing or altered file, features of
another definition: each is refused in one sentence that says what to do. It knows nothing of how a
policy was fitted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adacompute.core.errors import BundleError
from adacompute.core.types import Level
from adacompute.policies.dial import Dial
from adacompute.policies.inference import OnnxModel, Predictor
from adacompute.policies.policy import Policy
from adacompute.policies.router import Router, ValueRouter
from adacompute.policies.stopping import AdaptiveConsistency, EarlyStopping
from adacompute.policies.uniform import TICKETS, Fixed, Retry, Rule, Ruled

FORMAT = 1
FILE = "bundle.json"
RULES: dict[str, type[Fixed | Retry | AdaptiveConsistency | EarlyStopping]] = {
    "fixed": Fixed,
    "retry": Retry,
    "adaptive-consistency": AdaptiveConsistency,
    "early-stopping": EarlyStopping,
}


@dataclass(frozen=True, eq=False)
class Bundle:
    """A policy and its circumstances.

    ``frontier`` holds (budget, price) pairs by rising budget, where the price was calibrated.
    ``data`` is a hash of the training data.
    """

    policy: Policy
    unit: str = "samples"
    features: str = "paper"
    feature_version: int = 1
    model: str | None = None
    grader: str | None = None
    data: str | None = None
    frontier: tuple[tuple[float, float], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


def save_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle as a directory, whole or not at all."""
    models = _models(bundle.policy)
    files = {f"model-{i}.onnx": model for i, model in enumerate(models)}
    content = {
        "format": FORMAT,
        "policy": _describe(bundle.policy),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        **{
            name: getattr(bundle, name)
            for name in ("unit", "features", "feature_version", "model", "grader", "data")
        },
        "frontier": [list(pair) for pair in bundle.frontier],
        "notes": bundle.notes,
    }
    if path.exists() and not (path / FILE).is_file():
        raise BundleError(f"{path} exists and is not a bundle: name another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        for name, data in files.items():
            (made / name).write_bytes(data)
        (made / FILE).write_text(json.dumps(content, indent=2) + "\n")
        made.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        made.replace(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def load_bundle(path: Path) -> Bundle:
    """Read a bundle, and refuse what is damaged or of another version."""
    try:
        content = json.loads((path / FILE).read_text())
    except OSError as error:
        raise BundleError(f"there is no bundle at {path}: {error.strerror}") from None
    except ValueError:
        raise BundleError(f"{path / FILE} is damaged: train the policy again") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise BundleError(
            f"{path} is of bundle format {version} and this version reads {FORMAT}: "
            "train the policy again with this version"
        )
    try:
        models = [_read_model(path, name, digest) for name, digest in content["files"].items()]
        return Bundle(
            policy=_rebuild(content["policy"], models),
            unit=content["unit"],
            features=content["features"],
            feature_version=content["feature_version"],
            model=content["model"],
            grader=content["grader"],
            data=content["data"],
            frontier=tuple((float(b), float(p)) for b, p in content["frontier"]),
            notes=content["notes"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{path / FILE} is damaged ({error}): train the policy again") from None


def _read_model(path: Path, name: str, digest: str) -> OnnxModel:
    if Path(name).name != name:
        raise BundleError(f"{path / FILE} names a file outside of the bundle: {name!r}")
    try:
        data = (path / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{path / name} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise BundleError(f"{path / name} was altered since it was trained: train the policy again")
    return OnnxModel(data)


def _models(policy: Policy) -> list[bytes]:
    found: tuple[Predictor, ...] = ()
    if isinstance(policy, Router):
        found = policy.models
    elif isinstance(policy, ValueRouter):
        found = (policy.model,)
    data = []
    for model in found:
        if not isinstance(model, OnnxModel):
            raise BundleError(
                "only the tree classifier is bundled: train the router with the classifier 'gbm'"
            )
        data.append(model.data)
    return data


def _describe(policy: Policy) -> dict[str, Any]:
    """Say what a policy is, its models aside."""
    content: dict[str, Any] = {"levels": [asdict(level) for level in policy.levels]}
    if isinstance(policy, Router):
        return {"kind": "router", "prices": policy.dial.prices, **content}
    if isinstance(policy, ValueRouter):
        return {"kind": "value-router", **content}
    if isinstance(policy, Ruled):
        kinds = {rule_type: name for name, rule_type in RULES.items()}
        return {
            "kind": "ruled",
            "name": policy.name,
            "prices": policy.dial.prices,
            "rules": [{"rule": kinds[type(rule)], **asdict(rule)} for rule in policy.rules],  # type: ignore[index,call-overload]
            "ticket": policy.ticket,
            "lengths": policy.lengths,
            "length_feature": policy.length_feature,
            **content,
        }
    raise BundleError(f"a {type(policy).__name__} cannot be bundled")


def _rebuild(content: dict[str, Any], models: list[OnnxModel]) -> Policy:
    levels = tuple(Level(**level) for level in content["levels"])
    kind = content["kind"]
    if kind == "value-router":
        (model,) = models
        return ValueRouter(levels, model)
    dial = Dial(tuple(float(price) for price in content["prices"]))
    if kind == "router":
        if len(models) != len(dial.prices):
            raise BundleError(f"{len(dial.prices)} prices need as many models, not {len(models)}")
        return Router(levels, tuple(models), dial)
    if kind != "ruled" or content["ticket"] not in TICKETS:
        raise BundleError(f"a policy of kind {kind!r} is not known to this version")
    rules = tuple(_rule(dict(rule)) for rule in content["rules"])
    if len(rules) != len(dial.prices):
        raise BundleError(f"{len(dial.prices)} prices need as many rules, not {len(rules)}")
    return Ruled(
        content["name"],
        levels,
        rules,
        dial,
        ticket=content["ticket"],
        lengths=tuple(content["lengths"]),
        length_feature=content["length_feature"],
    )


def _rule(content: dict[str, Any]) -> Rule:
    name = content.pop("rule")
    if name not in RULES:
        raise BundleError(f"a rule {name!r} is not known to this version")
    rule: Rule = RULES[name](**content)
    return rule
