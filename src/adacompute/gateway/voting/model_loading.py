"""Model loading: from the settings of virtual models to their policies, graders and prices.

Models with the same grader share one queue of samples to grade.

Everything is checked here, so that wrong settings fail with one sentence before a request is
served. It opens no connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget
from adacompute.core.signals import SCORE
from adacompute.datasets.example import locate_bundle
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import FLAG, ModelConfig
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.virtual_model import SampledModel, VirtualModel
from adacompute.graders.grader import Grader, load_grader
from adacompute.models.capabilities_cache import cache_path, load_cached
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.scorer import HttpScorer
from adacompute.policies.bundles.bundle import NOT_JUDGED, Bundle, load_bundle
from adacompute.policies.bundles.bundle_checks import (
    check_arms,
    check_precision,
    check_signals,
    check_verdict,
    make_today,
)
from adacompute.sampling.grading import TIMEOUT_S, Grading
from adacompute.spending.token_prices import (
    TokenPriceList,
    find_token_prices,
    parse_token_prices,
)


def load_models(config: Config) -> dict[str, VirtualModel]:
    """Load the policy of every virtual model; raise ConfigError if one does not fit."""
    models: dict[str, VirtualModel] = {}
    graders: dict[str, Grader] = {}
    for name, model in config.models.items():
        try:
            virtual = _load(config, name, model)
        except (BundleError, ConfigError, InfeasibleBudget) as error:
            raise ConfigError(f"models.{name}: {error}") from None
        # Models with the same grader share its process.
        models[name] = replace(
            virtual, grader=graders.setdefault(virtual.grader.name, virtual.grader)
        )
    return models


def _load(config: Config, name: str, given: ModelConfig) -> VirtualModel:
    bundle = load_bundle(locate_bundle(Path(given.bundle)), digest=given.bundle_digest)
    return make_model(config, name, given, bundle)


def make_model(
    config: Config,
    name: str,
    given: ModelConfig,
    bundle: Bundle,
    grader: Grader | None = None,
) -> VirtualModel:
    """Make a virtual model from its settings and its policy, or raise an error if they do not fit.

    ``grader`` is one of the caller's own; otherwise it is made from its name.
    """
    check_arms(bundle, given.bundle)
    check_signals(bundle, given.bundle, (SCORE,) if given.scorer else ())
    first = bundle.arms[0].model if bundle.arms else None
    model, graded_by = given.model or bundle.model or first, given.grader or bundle.grader
    if model is None:
        raise BundleError(f"{given.bundle} does not say which model it is for: give its name")
    if grader is None and graded_by is None:
        raise BundleError(f"{given.bundle} does not name a grader: give one")
    _check_calibration(given, bundle)
    virtual = VirtualModel(
        name=name,
        model=model,
        bundle=bundle,
        budget=given.budget,
        grader=grader or load_grader(str(graded_by), timeout_s=TIMEOUT_S),
        max_rounds=bundle.max_rounds,
        max_output_tokens=given.max_output_tokens or config.max_output_tokens,
        deadline_s=given.deadline_s,
        unsure=given.unsure,
        today_share=given.today_share,
        as_today=make_today(bundle, given.bundle) if given.today_share else None,
        price_list=_find_prices(config, given, model),
        scorer=_make_scorer(config, given),
        answer_field=given.answer_field,
        pacing=given.pacing,
        **_find_upstreams(config, given, bundle, model),
    )
    url = config.upstream(virtual.upstream).base_url
    Engine(virtual, {None: Upstream(url, model)})  # checks the budget
    return virtual


def _find_upstreams(
    config: Config, given: ModelConfig, bundle: Bundle, model: str
) -> dict[str, Any]:
    """Return the upstream of a model, with its capabilities, and those of arms that differ.

    The upstream of a model is that of the arm with the same model, if there is one.
    """
    names = [arm.name for arm in bundle.arms]
    if unknown := sorted(set(given.arm_upstreams) - set(names)):
        known = ", ".join(names) or "none"
        raise ConfigError(f"arm_upstreams names {unknown[0]!r}; the arms of the bundle: {known}")

    def find(upstream: str | None, model: str) -> SampledModel:
        known = load_cached(cache_path(), config.upstream(upstream).base_url, model)
        return SampledModel(upstream, model, known or Capabilities())

    of_arms = {name: given.arm_upstreams.get(name, given.upstream) for name in names}
    same = [of_arms[arm.name] for arm in bundle.arms if arm.model == model]
    own = find(same[0] if same else given.upstream, model)
    others = {
        arm.name: find(of_arms[arm.name], arm.model)
        for arm in bundle.arms
        if of_arms[arm.name] != own.upstream
    }
    return {"upstream": own.upstream, "capabilities": own.capabilities, "arm_models": others}


def _find_prices(config: Config, given: ModelConfig, model: str) -> TokenPriceList:
    """Return token prices; those that are given for a model must include it."""
    price_list: TokenPriceList = {}
    if (prices := given.token_prices or config.token_prices) is not None:
        price_list = parse_token_prices(Path(prices))
    if given.token_prices is not None:
        find_token_prices(price_list, model)
    return price_list


def _make_scorer(config: Config, given: ModelConfig) -> HttpScorer | None:
    if given.scorer is None:
        return None
    return HttpScorer(
        given.scorer, limits=EndpointLimits(timeouts=config.timeouts, retries=config.retries)
    )


def _check_calibration(given: ModelConfig, bundle: Bundle) -> None:
    """Refuse a policy that was not calibrated for these rounds, or that showed no gain."""
    if given.max_rounds is not None and given.max_rounds != bundle.max_rounds:
        limit = "any number" if bundle.max_rounds is None else f"at most {bundle.max_rounds}"
        raise BundleError(
            f"max_rounds is {given.max_rounds}, but {given.bundle} was calibrated for {limit} of "
            f"rounds: run 'adacompute fit' with --config max-rounds={given.max_rounds}"
        )
    check_verdict(bundle, given.budget, path=given.bundle, is_accepted=given.accept_verdict)
    if given.unsure != FLAG:
        check_precision(bundle, given.bundle)


def describe_verdict(name: str, virtual: VirtualModel) -> str | None:
    """Return a sentence on the verdict of a virtual model; None if it needs none."""
    verdict = virtual.bundle.verdict(virtual.budget)
    if verdict is None:
        return None
    if verdict == NOT_JUDGED:
        return (
            f"warning: {name} was not judged at a budget of {virtual.budget:g}: calibrate its "
            "bundle at this budget for a verdict"
        )
    return f"{name}: the verdict at a budget of {virtual.budget:g} is {verdict!r}"


class GradingQueues:
    """The queues of all graders of a gateway."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._queues: list[Grading] = []

    def queue_for(self, grader: Grader) -> Grading:
        """Return the queue of a grader; it is made when it is first asked for."""
        found = next((queue for queue in self._queues if queue.grader is grader), None)
        if found is None:
            failed = partial(self._metrics.count, "grader_failures_total", grader.name)
            found = Grading(grader, on_failure=failed)
            self._queues.append(found)
        return found

    async def close(self) -> None:
        """Stop all graders; processes that do not end are killed."""
        await asyncio.gather(*(asyncio.to_thread(queue.close) for queue in self._queues))
