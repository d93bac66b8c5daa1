"""Serving: fitted policies behind an OpenAI-compatible endpoint, as an ASGI application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from adacompute.api.bundles import load_policy
from adacompute.api.estimator import Estimator, as_estimator
from adacompute.core.errors import AdaComputeError, ConfigError
from adacompute.gateway.app import Application, build
from adacompute.gateway.requests.openai_requests import check_name
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import ModelConfig
from adacompute.gateway.voting.model_loading import make_model
from adacompute.graders.grader import Grader

if TYPE_CHECKING:
    from adacompute.gateway.voting.virtual_model import VirtualModel

ANY_PORT = 0
"""The ASGI server chooses where to listen, not this application."""

_OWN = {"base_url", "budget", "bundle", "bundle_digest", "host", "models", "port", "workers"}
_OWN |= {"arm_upstreams", "upstream", "upstreams"}  # only in a file
_MODEL = {field.name for field in fields(ModelConfig)} - _OWN
_GATEWAY = {field.name for field in fields(Config)} - _OWN


def create_app(
    policies: Mapping[str, Estimator | str | PathLike[str]],
    *,
    base_url: str,
    budget: float | Mapping[str, float],
    grader: str | Grader | None = None,
    **settings: Any,  # noqa: ANN401 - settings of the gateway, checked by name
) -> Application:
    """Make an ASGI application that answers requests for some models by their policies.

    ``policies`` maps names of models to fitted and calibrated policies, or to their directories.
    Requests for other models are forwarded to ``base_url`` unchanged. ``budget`` is one number or
    one per model. ``settings`` are further settings of the gateway, by the names of its
    configuration file, such as ``upstream_api_key``, ``bearer_tokens``, ``state_directory``,
    ``decision_log``, ``max_rounds`` and ``deadline_s``. The server is probed, in the background,
    only with ``probe=True``. Mounted inside another application, pass
    ``lifespan=app.lifespan`` to that one.
    """
    if unknown := sorted(set(settings) - _MODEL - _GATEWAY):
        known = ", ".join(sorted(_MODEL | _GATEWAY))
        raise ConfigError(f"the gateway has no setting {unknown[0]!r}; it has {known}")
    common = {name: value for name, value in settings.items() if name in _GATEWAY}
    config = Config(base_url, port=ANY_PORT, **{"probe": False, **common})
    known_models = {name: value for name, value in settings.items() if name in _MODEL}
    models: dict[str, VirtualModel] = {}
    for name, source in policies.items():
        amount = budget.get(name) if isinstance(budget, Mapping) else budget
        if amount is None:
            raise ConfigError(f"there is no budget for {name!r}: give one for every model")
        try:
            models[name] = _make(config, name, source, amount, grader, known_models)
        except AdaComputeError as error:
            raise type(error)(f"{name}: {error}") from None
    return build(config, models)


def _make(
    config: Config,
    name: str,
    source: Estimator | str | PathLike[str],
    budget: float,
    grader: str | Grader | None,
    settings: dict[str, Any],
) -> VirtualModel:
    """Make one virtual model; the upstream knows it by the same name."""
    policy = load_policy(source) if isinstance(source, str | PathLike) else as_estimator(source)
    check_name(name)
    policy.price_for(budget)  # refuses what was not calibrated, and says how to
    known = {"model": name, **settings, "grader": grader if isinstance(grader, str) else None}
    given = ModelConfig(bundle=name, budget=float(budget), **known)
    own = getattr(policy, "grader_", None) if grader is None else grader
    return make_model(
        config, name, given, policy.to_bundle(), None if isinstance(own, str) else own
    )
