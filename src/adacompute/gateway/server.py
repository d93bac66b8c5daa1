"""Server: from a configuration to processes that listen.

Policies are loaded before anything listens, so that wrong settings fail at once with one sentence.
Workers are processes that share only the port and the directory of the metrics. Stopping drains: no
new requests are accepted, and those in flight are answered. One last line says what was served.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget, needs_extra
from adacompute.datasets.example import locate_bundle
from adacompute.gateway import probing
from adacompute.gateway.app import Application, build
from adacompute.gateway.config import MB, Config, ModelConfig, make_config
from adacompute.gateway.engine import Engine, VirtualModel
from adacompute.gateway.metrics import SHARED_DIRECTORY, Metrics
from adacompute.graders.grader import Grader, load_grader
from adacompute.models.capabilities_cache import cache_path, load_cached
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.scorer import HttpScorer
from adacompute.policies.bundle import NOT_JUDGED, Bundle, load_bundle
from adacompute.spending.token_prices import (
    TokenPriceList,
    find_token_prices,
    parse_token_prices,
)

CONFIG_VARIABLE = "ADACOMPUTE_GATEWAY"
"""Environment variable that passes the configuration to the workers."""

KEEP_ALIVE_TIMEOUT_S = 75
BACKLOG = 4096


def load_models(config: Config) -> dict[str, VirtualModel]:
    """Load the policy of every virtual model; raise ConfigError if one does not fit."""
    models: dict[str, VirtualModel] = {}
    for name, model in config.models.items():
        try:
            models[name] = _load(config, name, model)
        except (BundleError, ConfigError, InfeasibleBudget) as error:
            raise ConfigError(f"models.{name}: {error}") from None
    return models


def _load(config: Config, name: str, given: ModelConfig) -> VirtualModel:
    bundle = load_bundle(locate_bundle(Path(given.bundle)))
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
    model, graded_by = given.model or bundle.model, given.grader or bundle.grader
    if model is None:
        raise BundleError(f"{given.bundle} does not say which model it is for: give its name")
    if grader is None and graded_by is None:
        raise BundleError(f"{given.bundle} does not name a grader: give one")
    _check_calibration(given, bundle)
    price_list: TokenPriceList = {}
    if (prices := given.token_prices or config.token_prices) is not None:
        price_list = parse_token_prices(Path(prices))
    if given.token_prices is not None:
        find_token_prices(price_list, model)
    scorer = None
    if given.scorer is not None:
        scorer = HttpScorer(
            given.scorer,
            timeouts=config.timeouts,
            retries=config.retries,
            max_reply_bytes=int(config.max_reply_mb * MB),
        )
    virtual = VirtualModel(
        name=name,
        model=model,
        bundle=bundle,
        budget=given.budget,
        grader=grader or load_grader(str(graded_by)),
        max_rounds=bundle.max_rounds,
        deadline_s=given.deadline_s,
        shadow=given.shadow,
        audit_share=given.audit_share,
        audit_max_share=given.audit_max_share,
        price_list=price_list,
        scorer=scorer,
        answer_field=given.answer_field,
        capabilities=load_cached(cache_path(), config.base_url, model) or Capabilities(),
    )
    Engine(virtual, Upstream(config.base_url, model))  # checks the budget
    return virtual


def _check_calibration(given: ModelConfig, bundle: Bundle) -> None:
    """Refuse a policy that was not calibrated for these rounds, or that showed no gain."""
    if given.max_rounds is not None and given.max_rounds != bundle.max_rounds:
        limit = "any number" if bundle.max_rounds is None else f"at most {bundle.max_rounds}"
        raise BundleError(
            f"max_rounds is {given.max_rounds}, but {given.bundle} was calibrated for {limit} of "
            f"rounds: run 'adacompute calibrate --max-rounds {given.max_rounds}'"
        )
    verdict = bundle.verdict(given.budget)
    if verdict not in (None, "gain", NOT_JUDGED) and not given.accept_verdict:
        raise BundleError(
            f"the verdict on {given.bundle} at a budget of {given.budget:g} is {verdict!r}: train "
            "and serve the policy 'mixture', or set accept_verdict (--accept-verdict)"
        )


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


def run(config: Config, report: Callable[[str], None]) -> None:
    """Serve until a signal stops the process."""
    with needs_extra("serve"):
        import uvicorn

        from adacompute.gateway.client_protocol import ClientProtocol

    models = load_models(config)
    _check_port(config)
    names = ", ".join(models) or "none"
    for name, virtual in models.items():
        if sentence := describe_verdict(name, virtual):
            report(sentence)
    report(f"listening on http://{config.host}:{config.port}/v1, deciding for: {names}")
    if config.probe and any(
        probing.needs_probe(virtual.capabilities) for virtual in models.values()
    ):
        report(f"probing {config.base_url} in the background: /ready answers 503 until then")
    # After a graceful stop, uvicorn raises the signal again, and it ignores KeyboardInterrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "workers": config.workers,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "backlog": BACKLOG,
        "timeout_keep_alive": KEEP_ALIVE_TIMEOUT_S,
        "timeout_graceful_shutdown": int(config.drain_s),
        "http": ClientProtocol,
        "proxy_headers": False,
        "ws": "none",  # a WebSocket would have none of the limits
    }
    if config.workers == 1:
        _set_up_logging()
        application = build(config, models)
        uvicorn.run(application, **settings)
        report(_summarize(application.metrics))
        return
    os.environ[CONFIG_VARIABLE] = json.dumps(asdict(config))
    with _shared_metrics():
        uvicorn.run("adacompute.gateway.server:create", factory=True, **settings)
        report(_summarize(Metrics()))


def _summarize(metrics: Metrics) -> str:
    """Say what a gateway that stops has served."""
    n_requests, n_samples, n_audit_samples = (
        int(metrics.total(name) or 0)
        for name in ("requests_total", "samples_total", "audit_samples_total")
    )
    cost = metrics.total("cost_total")
    known = "unknown without token prices" if cost is None else f"{cost:.6g}"
    return (
        f"stopped: {n_requests} requests, {n_samples} samples for answers, "
        f"{n_audit_samples} for audits, cost {known}"
    )


def _check_port(config: Config) -> None:
    """Raise ConfigError if the address cannot be listened on."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        socket.create_server((config.host, config.port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {config.port} of {config.host}: {error.strerror}; "
            "choose another with --port"
        ) from None


@contextmanager
def _shared_metrics() -> Iterator[None]:
    """Make a directory for the metrics of several workers."""
    with tempfile.TemporaryDirectory(prefix="adacompute-metrics-") as shared:
        os.environ[SHARED_DIRECTORY] = shared
        yield


def _set_up_logging() -> None:
    """Log warnings, and the result of the probe, which operators wait for."""
    logging.getLogger(probing.__name__).setLevel(logging.INFO)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")


def create() -> Application:
    """Make the application of one worker, from the configuration that its parent passed."""
    _set_up_logging()
    try:
        content: Mapping[str, Any] = json.loads(os.environ[CONFIG_VARIABLE])
    except (KeyError, ValueError):
        raise ConfigError("start a gateway with 'adacompute serve'") from None
    config = make_config(content)
    return build(config, load_models(config))
