"""Virtual model: a model name that clients may ask for, with its policy and its budget.

It is made from settings by ``model_loading``, and it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adacompute.gateway.settings.model_settings import FLAG
from adacompute.graders.grader import Grader
from adacompute.models.messages import Capabilities
from adacompute.models.scorer import HttpScorer
from adacompute.policies.bundles.bundle import Bundle
from adacompute.spending.token_prices import TokenPriceList


@dataclass(frozen=True)
class SampledModel:
    """A model of an upstream: its name there, and what is known of the server about it."""

    upstream: str | None
    model: str
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass(frozen=True, eq=False)
class VirtualModel:
    """A model name that clients may ask for, and how its requests are decided.

    It is ``model`` of the upstream that is named so, or of the gateway's own; ``arm_models`` are
    those of arms that another upstream serves. With ``pacing``, the mean cost of its requests is
    held at the budget.
    ``as_today`` answers as today, if a share of the requests is.
    """

    name: str
    model: str
    bundle: Bundle
    budget: float
    grader: Grader
    max_rounds: int | None = None
    max_output_tokens: int | None = None
    deadline_s: float | None = None
    unsure: str = FLAG
    today_share: float = 0.0
    as_today: Bundle | None = None
    price_list: TokenPriceList = field(default_factory=dict)
    scorer: HttpScorer | None = None
    answer_field: str | None = None
    pacing: bool = False
    capabilities: Capabilities = field(default_factory=Capabilities)
    upstream: str | None = None
    arm_models: Mapping[str, SampledModel] = field(default_factory=dict)

    @property
    def upstream_models(self) -> dict[str | None, SampledModel]:
        """What is sampled: None is every arm that has no model of its own here."""
        own = SampledModel(self.upstream, self.model, self.capabilities)
        return {None: own} | dict(self.arm_models)
