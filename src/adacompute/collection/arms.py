"""Arms: the models and settings that a collection samples, read from options or a TOML file.

An arm is a model with its settings, its prompt template and its token prices. What it does not set
is taken from the options of the collection. This module knows nothing of servers or stores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adacompute.collection.prompts import find_form, read_few_shot
from adacompute.core.errors import ConfigError
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.options.shared import API_KEY_ENV
from adacompute.spending.token_prices import TokenPrices, find_token_prices, parse_token_prices

ARM_KEYS = (
    "name",
    "model",
    "base_url",
    "api_key_env",
    "samples",
    "effort",
    "max_tokens",
    "temperature",
    "prompt",
    "system",
    "few_shot",
    "request",
)

OWN_FIELDS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "prompt",
        "seed",
        "stop",
        "stream",
        "temperature",
    }
)
"""Request fields that a collection sets itself: an arm cannot set them under ``request``."""

_REQUEST = "request."


@dataclass(frozen=True)
class ArmSpec:
    """One arm to collect, as given on the command line or in a TOML file."""

    name: str
    model: str
    base_url: str
    api_key_env: str = API_KEY_ENV
    n_samples: int = 48
    settings: Settings = field(default_factory=Settings)
    token_prices: TokenPrices = field(default_factory=TokenPrices)
    template: Template = field(default_factory=Template)


def read_arms(
    given: Sequence[Mapping[str, Any]],
    default: ArmSpec,
    grader: str,
    token_prices: Path | None = None,
    price_as: Mapping[str, str] | None = None,
) -> tuple[ArmSpec, ...]:
    """Return the given arms, or the default one, each with its token prices."""
    specs = [_read_arm(arm, default, grader) for arm in given] or [default]
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"arms must have different names, got {names}")
    if price_as and token_prices is None:
        raise ConfigError("price-as names a listed model: give the list with --token-prices")
    if token_prices is not None:
        price_list = parse_token_prices(token_prices, price_as)
        specs = [
            replace(spec, token_prices=find_token_prices(price_list, spec.model)) for spec in specs
        ]
    return tuple(specs)


def _read_arm(given: Mapping[str, Any], default: ArmSpec, grader: str) -> ArmSpec:
    """Return one arm; what it does not set is taken from the default arm."""
    for key in given:
        if key not in ARM_KEYS and not key.startswith(_REQUEST):
            raise ConfigError(f"an arm has no {key!r}; it has {', '.join(ARM_KEYS)}")
    if "name" not in given:
        raise ConfigError("an arm needs a name: name=big,model=…")
    name = str(given["name"])
    extra = _read_request(given, name)
    try:
        settings = replace(
            default.settings,
            effort=given.get("effort"),
            max_tokens=int(given.get("max_tokens", default.settings.max_tokens or 0)),
            temperature=float(given.get("temperature", default.settings.temperature)),
            extra=extra,
        )
        samples = int(given.get("samples", default.n_samples))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"arm {name!r}: {error}") from None
    return ArmSpec(
        name=name,
        model=given.get("model", default.model),
        base_url=given.get("base_url", default.base_url),
        api_key_env=given.get("api_key_env", default.api_key_env),
        n_samples=samples,
        settings=settings,
        template=_read_template(given, default.template, grader),
    )


def _read_template(given: Mapping[str, Any], default: Template, grader: str) -> Template:
    """Return the prompt template of an arm."""
    template = default
    if "prompt" in given:
        template = replace(template, form=find_form(str(given["prompt"]), grader))
    if "system" in given:
        template = replace(template, system=str(given["system"]))
    if "few_shot" in given:
        template = replace(template, few_shot=read_few_shot(Path(given["few_shot"])))
    return template


def _read_request(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the further request fields of an arm: a table, or keys such as ``request.top_p``."""
    table = given.get("request", {})
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"arm {name!r}: request must be a table of request fields, got {table!r}: on the "
            "command line, write request.FIELD=VALUE"
        )
    fields = dict(table)
    for key, value in given.items():
        if key.startswith(_REQUEST):
            fields[key.removeprefix(_REQUEST)] = _parse_value(value)
    if own := sorted(OWN_FIELDS.intersection(fields)):
        raise ConfigError(
            f"arm {name!r}: request cannot set {own[0]!r}, because collect sets it: use an option "
            "of the arm or of the collection"
        )
    return fields


def _parse_value(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of the command line: JSON such as 0.9 or true, and any other text as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
