"""Server: from a configuration to processes that listen.

Policies are loaded and the upstream is probed before anything listens, so that what cannot work
fails at once and in one sentence. Workers are processes that share nothing but the port and the
directory of the metrics. It ends by draining: no new requests, those under way are answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adacompute.core.errors import AdaComputeError, BundleError, ConfigError, require
from adacompute.datasets.example import locate_policy
from adacompute.gateway.app import Application, build
from adacompute.gateway.config import Config, ModelConfig, make_config
from adacompute.gateway.engine import Engine, VirtualModel
from adacompute.gateway.metrics import SHARED
from adacompute.graders.grader import load
from adacompute.models.findings import cache_place, load_cached, save_cached
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe
from adacompute.models.scorer import Scorer
from adacompute.models.upstream import Capabilities
from adacompute.policies.bundle import load_bundle
from adacompute.spending.tariffs import find_tariff, read_tariffs

PASSED_DOWN = "ADACOMPUTE_GATEWAY"
"""Environment variable through which workers learn their configuration."""

KEEP_ALIVE_S = 75
BACKLOG = 4096


def load_models(config: Config) -> dict[str, VirtualModel]:
    """Load the policy of every virtual model, and refuse what does not fit."""
    models: dict[str, VirtualModel] = {}
    for name, model in config.models.items():
        try:
            models[name] = _load(config, name, model)
        except (BundleError, ConfigError) as error:
            raise ConfigError(f"models.{name}: {error}") from None
    return models


def _load(config: Config, name: str, given: ModelConfig) -> VirtualModel:
    bundle = load_bundle(locate_policy(Path(given.policy)))
    model, grader = given.model or bundle.model, given.grader or bundle.grader
    if model is None:
        raise BundleError(f"{given.policy} does not say which model it is for: give its name")
    if grader is None:
        raise BundleError(f"{given.policy} does not say how answers are read: give a grader")
    tariff = None
    if given.tariff is not None:
        tariff = find_tariff(read_tariffs(Path(given.tariff)), model)
    virtual = VirtualModel(
        name=name,
        model=model,
        bundle=bundle,
        budget=given.budget,
        grader=load(grader),
        max_rounds=given.max_rounds,
        latency_s=given.latency_s,
        shadow=given.shadow,
        holdout=given.holdout,
        holdout_most=given.holdout_most,
        tariff=tariff,
        scorer=None if given.scorer is None else Scorer(given.scorer),
        capabilities=load_cached(cache_place(), config.base_url, model) or Capabilities(),
    )
    Engine(virtual, Upstream(config.base_url, model))  # refuses a budget that cannot be held
    return virtual


async def probe_models(config: Config, tell: Callable[[str], None]) -> None:
    """Find out what the upstream does, where that is not known yet; a dead one is only told of."""
    models = {virtual.model: virtual for virtual in load_models(config).values()}
    for name, virtual in models.items():
        if virtual.capabilities != Capabilities():
            continue
        tell(f"probing {config.base_url} for {name}")
        try:
            async with Upstream(config.base_url, name, key=config.key) as upstream:
                found = await probe(upstream)
        except AdaComputeError as error:
            tell(f"could not be probed, one call a draw: {error}")
        else:
            save_cached(cache_place(), config.base_url, name, found)


def run(config: Config, tell: Callable[[str], None]) -> None:
    """Serve until told to stop."""
    uvicorn = require("uvicorn", extra="serve")
    require("starlette", extra="serve")
    load_models(config)
    if config.probe:
        asyncio.run(probe_models(config, tell))
    models = ", ".join(config.models) or "none"
    tell(f"listening on http://{config.host}:{config.port}/v1, deciding for: {models}")
    os.environ[PASSED_DOWN] = json.dumps(asdict(config))
    with tempfile.TemporaryDirectory(prefix="adacompute-metrics-") as shared:
        if config.workers > 1:
            os.environ[SHARED] = shared
        uvicorn.run(
            "adacompute.gateway.server:create",
            factory=True,
            host=config.host,
            port=config.port,
            workers=config.workers,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(config.drain_s),
            http=require("adacompute.gateway.protocol", extra="serve").Patient,
            proxy_headers=False,
        )


def create() -> Application:
    """Make the application of one worker, from what its parent passed down."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        content: Mapping[str, Any] = json.loads(os.environ[PASSED_DOWN])
    except (KeyError, ValueError):
        raise ConfigError("a gateway is started by 'adacompute serve'") from None
    config = make_config(content)
    return build(config, load_models(config))
