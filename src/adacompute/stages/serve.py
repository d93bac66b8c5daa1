"""Serve: the stage that configures and starts a gateway, from options or a file.

It reads the upstream's API key from the environment. The rest is done by ``gateway``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from adacompute.core.errors import AdaComputeError, ConfigError, ModelError
from adacompute.datasets.example import locate_bundle
from adacompute.gateway.accounting.caps import CapConfig
from adacompute.gateway.forwarding.probing import needs_probe
from adacompute.gateway.processes.logs import log as log_line
from adacompute.gateway.processes.logs import set_up_logging
from adacompute.gateway.processes.supervisor import run
from adacompute.gateway.settings.config import Config, make_config, read_config
from adacompute.gateway.settings.model_settings import ModelConfig
from adacompute.gateway.settings.settings import expand_variables, variables_in
from adacompute.gateway.voting.model_loading import load_models
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.models.capabilities_cache import cache_path, describe
from adacompute.models.connection.relay import Relay
from adacompute.models.messages import Timeouts
from adacompute.models.probe import MAX_CALLS, MAX_COMPLETION_TOKENS, MAX_PROMPT_TOKENS
from adacompute.options.definition import is_pair, takes
from adacompute.options.main import ServeOptions
from adacompute.options.shared import API_KEY_ENV
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.spending.caps.accounts import LEASE_SHARE
from adacompute.spending.registers import RegisterError
from adacompute.spending.token_prices import NANO
from adacompute.stages.inputs import read_api_key

_IS_LIMIT = re.compile(r"max_.*|.*timeout_s")
"""Names of settings that limit requests."""

CHECK_S = 5.0
"""How long ``serve --check`` waits for an upstream."""

BAD_REQUEST, NOT_FOUND = 400, 404


FROM_OPTIONS = ("base_url", "host", "port", "workers")
"""Options that are settings of the gateway by the same name."""


@takes(ServeOptions)
def configure(options: ServeOptions) -> Config:
    """Combine options and a file; without a file, the bundle's model is the one virtual model."""
    path, pairs = _read_sources(options.config)
    values = {name: getattr(options, name) for name in FROM_OPTIONS}
    values = pairs | {name: value for name, value in values.items() if value is not None}
    if (key := read_api_key(API_KEY_ENV)) is not None:
        values.setdefault("upstream_api_key", key)
    of_model = {name: values.pop(name) for name in OF_MODEL & values.keys()}
    if options.accept_verdict:
        of_model["accept_verdict"] = True
    if options.unsure is not None:
        of_model["unsure"] = options.unsure
    if options.bundle is not None:
        values["models"] = _one_model(options.bundle, options, of_model)
    elif of_model:
        name = next(iter(of_model))
        raise ConfigError(f"{name} is for --bundle: set it under [serve.models.NAME] in the file")
    if path is not None:
        if options.bundle is not None:
            raise ConfigError("give --bundle, or a file that names bundles, not both")
        return read_config(path, values)
    if os.environ.get("OPENAI_BASE_URL"):
        values.setdefault("base_url", os.environ["OPENAI_BASE_URL"])
    if options.bundle is None or "base_url" not in values:
        raise ConfigError("serve needs --bundle, --base-url and --budget, or --config FILE")
    return make_config(values)


OF_MODEL = {one.name for one in fields(ModelConfig)} - {one.name for one in fields(Config)}
"""Settings of a virtual model, not of the gateway."""


def _read_sources(sources: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the file that is given by ``--config``, and the settings beside it."""
    files = [Path(source) for source in sources if not is_pair(source)]
    if len(files) > 1:
        raise ConfigError("give one configuration file")
    pairs: dict[str, Any] = {}
    for name, _sign, text in (one.partition("=") for one in sources if is_pair(one)):
        *tables, key = name.replace("-", "_").split(".")
        table = pairs
        for outer in tables:
            table = table.setdefault(outer, {})
        table[key] = _read_value(text)
    expanded: dict[str, Any] = expand_variables(pairs)
    return files[0] if files else None, expanded


def _read_value(text: str) -> Any:  # noqa: ANN401 - whatever TOML holds
    """Return a value as TOML has it; what is no TOML is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _one_model(bundle: Path, options: ServeOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of the one virtual model."""
    if options.budget is None:
        raise ConfigError("serve needs --budget: the mean cost per request, such as 2 samples")
    bundle = locate_bundle(bundle)
    name = options.model or load_bundle(bundle, digest=given.get("bundle_digest")).model
    if name is None:
        raise ConfigError(f"{bundle} does not say which model it is for: give --model")
    known = {"bundle": str(bundle), "budget": options.budget, "model": name}
    return {name: {**known, "grader": options.grader, **given}}


def check_serving(config: Config) -> dict[str, Any]:
    """Load everything that the gateway would load, and return what it would serve."""
    models = load_models(config)
    return {
        "upstreams": asyncio.run(_check_upstreams(config)),
        "listen": f"{config.host}:{config.port}",
        "needs_token": bool(config.bearer_tokens),
        "limits": _limits(config),
        "directories": _directories(config),
        "probe": _probe_cost(config, models),
        "models": [
            {
                "name": name,
                "model": virtual.model,
                "budget": virtual.budget,
                "verdict": virtual.bundle.verdict(virtual.budget),
                "min_budget": virtual.bundle.min_budget,
                "price": virtual.bundle.price_for(virtual.budget),
                "unit": virtual.bundle.unit,
                "levels": len(virtual.bundle.policy.levels),
                "grader": virtual.grader.name,
                "limits": _limits(config.models[name]),
                "found": _describe_found(virtual),
            }
            for name, virtual in models.items()
        ],
        "caps": [_describe_cap(cap, config.workers) for cap in config.caps],
        "store_problem": asyncio.run(_check_store(config)) if config.caps else None,
    }


def _limits(settings: Config | ModelConfig) -> dict[str, Any]:
    """Return the settings that limit requests and that are set."""
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {
        name: value
        for name, value in found.items()
        if value not in (None, (), False) and _IS_LIMIT.fullmatch(name)
    }


def _describe_found(virtual: VirtualModel) -> dict[str, str] | None:
    """Return what a probe of the upstream found; None if it was not probed lately."""
    if needs_probe(virtual.capabilities):
        return None
    return {tested: found for tested, found, _ in describe(virtual.capabilities)}


def _directories(config: Config) -> list[dict[str, Any]]:
    """Return where the gateway keeps files, and whether it can write there."""
    found = {
        "state": config.state,
        "results of probes": cache_path(),
        "metrics of workers": Path(tempfile.gettempdir()),
    }
    return [
        {"name": name, "directory": str(path.resolve()), "is_writable": _is_writable(path)}
        for name, path in found.items()
    ]


def _is_writable(path: Path) -> bool:
    """Whether a directory can be written, or made if it does not exist."""
    path = path.resolve()
    known = next(one for one in (path, *path.parents) if one.exists())
    return known.is_dir() and os.access(known, os.W_OK | os.X_OK)


def _probe_cost(config: Config, models: Mapping[str, VirtualModel]) -> dict[str, Any]:
    """Return the most that the probe at the start costs; nothing if its results are cached."""
    unknown = {
        virtual.model: virtual.price_list.get(virtual.model)
        for virtual in models.values()
        if config.probe and needs_probe(virtual.capabilities)
    }
    costs = [
        prices.max_cost(MAX_PROMPT_TOKENS, MAX_COMPLETION_TOKENS) / NANO
        + (MAX_CALLS - 1) * prices.call
        for prices in unknown.values()
        if prices is not None
    ]
    return {
        "models": list(unknown),
        "max_calls": MAX_CALLS * len(unknown),
        "max_prompt_tokens": MAX_PROMPT_TOKENS * len(unknown),
        "max_completion_tokens": MAX_COMPLETION_TOKENS * len(unknown),
        "max_cost": math.fsum(costs) if len(costs) == len(unknown) else None,
    }


def _describe_cap(cap: CapConfig, workers: int) -> dict[str, Any]:
    """Return a cap, and the largest lease that a lost worker can keep until the period ends."""
    return {
        "whose": "all requests" if cap.model is None else f"model {cap.model}",
        "amount": cap.amount,
        "unit": cap.unit,
        "period": cap.period,
        "max_stranded": cap.amount / LEASE_SHARE / workers,
    }


async def _check_upstreams(config: Config) -> list[dict[str, Any]]:
    """Return each upstream with what is wrong with it, None if it answers."""
    timeouts = Timeouts(connect_s=CHECK_S, first_byte_s=CHECK_S)

    async def check(name: str | None) -> dict[str, Any]:
        upstream, problem = config.upstream(name), None
        url, key = upstream.base_url, upstream.upstream_api_key
        try:
            async with (
                Relay(url, api_key=key, timeouts=timeouts) as relay,
                relay.send("GET", "models", [], b"") as reply,
            ):
                if reply.status >= BAD_REQUEST and reply.status != NOT_FOUND:  # without a list
                    problem = f"it answers {reply.status} to GET /models"
        except ModelError as error:
            problem = str(error).removeprefix(f"{url} ")
        return {"upstream": name, "base_url": url, "problem": problem}

    return await asyncio.gather(*map(check, (None, *config.upstreams)))


async def _check_store(config: Config) -> str | None:
    """Return what is wrong with the account store; None if nothing is."""
    register = config.open_register()
    try:
        return await register.check()
    except RegisterError as error:
        return str(error)
    finally:
        with suppress(RegisterError):
            await register.close()


def start_serving(options: ServeOptions, report: Callable[[str], None]) -> None:
    """Serve until a signal stops the process; ``report`` receives messages for the operator.

    A reload reads the file of the options again.
    """
    path, pairs = _read_sources(options.config)
    is_json = "json" in {pairs.get("log_format"), _read_log_format(path)}
    if is_json:
        set_up_logging("json", "info")
        report = partial(log_line, logging.INFO)
    try:
        config = configure(options=options)
        secrets = {API_KEY_ENV, *(set() if path is None else variables_in(path))}
        run(config, report, read=lambda: configure(options=options), secrets=secrets)
    except (AdaComputeError, OSError) as error:
        if not is_json:
            raise
        log_line(logging.ERROR, str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _read_log_format(path: Path | None) -> object:
    """Return the format of log lines that a file asks for, even if the rest of it is wrong."""
    try:
        table = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))["serve"]
        return table.get("log_format", table.get("log-format"))
    except (OSError, ValueError, KeyError, AttributeError):
        return None
