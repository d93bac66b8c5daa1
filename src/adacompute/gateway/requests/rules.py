"""Rules: what the configuration says about requests, as few plain values.

It reads no requests.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from adacompute.gateway.accounting.caps import EACH
from adacompute.gateway.requests.contract import TIER_SEPARATOR, TOOL_PREFIX, Limits, Terms
from adacompute.gateway.requests.fields import chat_length_fields
from adacompute.models.messages import Capabilities, UpstreamKind
from adacompute.spending.token_prices import NANO, TokenPriceList

if TYPE_CHECKING:
    from adacompute.gateway.settings.config import Config
    from adacompute.gateway.settings.model_settings import ModelConfig
    from adacompute.gateway.voting.virtual_model import VirtualModel

NO_LIMITS = Limits()


@dataclass(frozen=True)
class ModelRules:
    """What applies to one virtual model; its limits are those of the model alone."""

    limits: Limits = NO_LIMITS
    max_budget: float | None = None
    answer_field: str | None = None


@dataclass(frozen=True)
class CapRule:
    """Which requests a cap counts: of a model, of all if None."""

    model: str | None
    bounds_prompt: bool


@dataclass(frozen=True)
class Rules:
    """What applies to the requests of a gateway; ``limits`` are those of all of them.

    ``paths`` are those that the operator allows one by one, each with its method.
    """

    limits: Limits = NO_LIMITS
    models: Mapping[str, ModelRules] = field(default_factory=dict)
    caps: Sequence[CapRule] = ()
    paths: Collection[str] = ()
    terms: Terms = field(default_factory=Terms)
    _known_limits: dict[str | None, Limits] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def limits_of(self, model: str | None) -> Limits:
        """Return the limits of a request for a virtual model or for another one."""
        found = self._known_limits.get(model)
        if found is None:
            found = self._known_limits[model] = self._find_limits(model)
        return found

    def with_upstream(
        self,
        known: Mapping[str, Capabilities],
        given: UpstreamKind | None,
        kinds: Collection[UpstreamKind],
    ) -> Rules:
        """Return the rules with what is known of upstreams.

        ``given`` is the kind that the operator set, and ``kinds`` are those that were found. Of
        models that are not ``known``, it is not known how they take the length of a completion.
        """
        found: UpstreamKind = next(iter(kinds)) if len(kinds) == 1 else "generic"
        kind = given or found
        terms = replace(
            self.terms,
            kind=kind,
            length_fields=chat_length_fields(kind, Capabilities()),
            known_lengths={model: chat_length_fields(kind, one) for model, one in known.items()},
        )
        return replace(self, terms=terms)

    @cached_property
    def restricts_models(self) -> bool:
        """Whether something applies to some models only, so that a body must be understood."""
        has_limits = any(one.limits.judges for one in self.models.values())
        return has_limits or any(cap.model is not None for cap in self.caps)

    def _find_limits(self, model: str | None) -> Limits:
        virtual = NO_LIMITS if model is None else self.models[model].limits
        caps = [cap for cap in self.caps if cap.model is None or cap.model == model]
        max_samples = [
            one.max_samples for one in (self.limits, virtual) if one.max_samples is not None
        ]
        return replace(
            self.limits,
            max_samples=min(max_samples, default=None),
            max_output_tokens=virtual.max_output_tokens or self.limits.max_output_tokens,
            is_capped=bool(caps),
            bounds_prompt=any(cap.bounds_prompt for cap in caps),
        )


def make_rules(
    config: Config, models: Mapping[str, VirtualModel], price_list: TokenPriceList
) -> Rules:
    """Return the rules of a configuration; ``price_list`` has the prices of all other models."""
    tool_costs = {
        name.removeprefix(TOOL_PREFIX): math.ceil(prices.call * NANO)
        for name, prices in price_list.items()
        if name.startswith(TOOL_PREFIX)
    }
    tiers: dict[str, Collection[str]] = {}
    for name, virtual in models.items():
        names = [arm.model for arm in virtual.bundle.arms] or [virtual.model]
        found = [_priced_tiers({**price_list, **virtual.price_list}, one) for one in names]
        tiers[name] = set.intersection(*found)
    for name in price_list:
        model = name.rpartition(TIER_SEPARATOR)[0]
        tiers.setdefault(model, _priced_tiers(price_list, model))
    return Rules(
        Limits(
            config.max_samples,
            config.max_output_tokens,
            allows_stored=config.allow_stored_responses,
        ),
        {name: _model_rules(config.models.get(name), one) for name, one in models.items()},
        [
            CapRule(None if cap.model == EACH else cap.model, cap.needs_output_limit)
            for cap in config.caps
        ],
        [path for path in config.allowed_paths if "*" not in path],
        Terms(allowed_fields=frozenset(config.allowed_fields), tool_costs=tool_costs, tiers=tiers),
    )


def _model_rules(given: ModelConfig | None, virtual: VirtualModel) -> ModelRules:
    """Return the rules of a virtual model; without settings of its own, it has no limits."""
    if given is None:
        return ModelRules(answer_field=virtual.answer_field)
    return ModelRules(
        Limits(given.max_samples, given.max_output_tokens),
        given.budget if given.max_budget is None else given.max_budget,
        given.answer_field,
    )


def _priced_tiers(price_list: TokenPriceList, model: str) -> set[str]:
    """Return the service tiers of a model that have a price."""
    prefix = model + TIER_SEPARATOR
    return {name.removeprefix(prefix) for name in price_list if name.startswith(prefix)}
