"""Configuration: all settings of a gateway, checked before it starts.

A TOML file has one table, ``[serve]``, with a table of its own for each virtual model. ``${NAME}``
in a value is replaced by an environment variable. An unknown setting is an error that lists the
known ones, and every value is checked here. It opens no connection and loads no policy.
"""

from __future__ import annotations

import ipaddress
import math
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from adacompute.core.errors import ConfigError
from adacompute.gateway.accounting.caps import WHEN_SPENT, CapConfig, check_caps
from adacompute.gateway.processes.logs import FORMATS, LEVELS
from adacompute.gateway.requests.access import (
    ALLOWED_PATHS,
    check_paths,
    check_tokens,
    is_loopback,
)
from adacompute.gateway.requests.openai_requests import check_name
from adacompute.gateway.settings.model_settings import ModelConfig, UpstreamConfig
from adacompute.gateway.settings.settings import (
    as_table,
    build_settings,
    check_positive,
    expand_variables,
)
from adacompute.models.messages import RetryPolicy, Timeouts, UpstreamKind
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import Register
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.storage.calls import CallFile, default_state
from adacompute.storage.decisions import DecisionLog

_MAX_PORT = 65_535
_MAX_WAIT_S = 10.0
_POSITIVE = (
    "workers",
    "max_body_mb",
    "max_concurrency",
    "timeout_s",
    "first_byte_timeout_s",
    "max_attempts",
    "drain_s",
    "keep_days",
)

ACCOUNTS, DECISIONS = "accounts.sqlite", "decisions"
"""Names in the state directory: the file in which workers share what was spent, and the log."""

NO_LOG, TEXTS = "none", "texts"
DECISION_LOGS = (NO_LOG, "answers", TEXTS)


@dataclass(frozen=True)
class Config:
    """A gateway: its upstream, its models and its limits."""

    base_url: str
    """Address of the upstream, with its ``/v1``."""
    upstream_api_key: str | None = field(default=None, repr=False)
    """Key that is sent to the upstream."""
    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=dict)
    """Further upstreams, by their name, for ``upstream`` and ``arm_upstreams`` of models: see
    below."""
    host: str = "127.0.0.1"
    """Address to listen on. One that others can reach needs ``bearer_tokens``."""
    port: int = 8000
    """Port to listen on."""
    admin_host: str = "127.0.0.1"
    """Address of the admin pages: ``/ready``, ``/metrics`` and administration. Their port is
    the one after ``port``."""
    admin_key: str | None = field(default=None, repr=False)
    """Key that administration needs. Default: administration is off."""
    log_format: str = "text"
    """Lines on standard error: ``text`` or ``json``."""
    log_level: str = "info"
    """Least severe level of these lines: ``debug``, ``info``, ``warning`` or ``error``."""
    workers: int = 1
    """Worker processes."""
    forward_key: bool = False
    """Send the client's key upstream."""
    trusted_proxies: Sequence[str] = ()
    """Addresses and networks, such as ``10.0.0.0/8``, that may open more than 100 connections per
    worker (429)."""
    bearer_tokens: Sequence[str] = field(default=(), repr=False)
    """Token that every request needs, as ``Authorization: Bearer TOKEN`` (401), and a second one
    while it is being replaced. It is neither forwarded nor logged. Default: none, and only requests
    to a name of this machine are answered (403)."""
    max_body_mb: float = 8.0
    """Largest body of a request (413)."""
    max_concurrency: int = 10_000
    """Requests in flight, per worker (503)."""
    max_samples: int | None = None
    """Samples that one request may draw, prompts × ``n`` (403). Default: 64 for requests that are
    voted on, and no limit for those that are forwarded."""
    max_output_tokens: int | None = None
    """Tokens that one completion may have. It is written into requests that set no limit or a
    larger one. Caps in tokens or money need it."""
    timeout_s: float = 600.0
    """Time limit of a whole request, with all its calls and retries (504)."""
    first_byte_timeout_s: float = 120.0
    """Longest silence of the upstream in one call."""
    max_attempts: int = 3
    """Attempts per call to the upstream."""
    shutdown_delay_s: float = 0.0
    """Time to go on serving after SIGTERM, while ``/ready`` answers 503 and replies close their
    connections."""
    drain_s: float = 30.0
    """Time to complete requests after that, before everything is stopped."""
    probe: bool = True
    """Find out at the start what the upstream supports."""
    allowed_paths: Sequence[str] = ALLOWED_PATHS
    """Requests that clients may send (403). A path may end in ``*``; ``* /v1/*`` allows all."""
    allow_stored_responses: bool = False
    """Accept references to what the upstream stores, for whichever client, such as
    ``previous_response_id``, ``conversation``, ``file_id`` and ``item_reference``."""
    upstream_kind: str | None = None
    """Kind of the upstream: ``openai``, ``vllm``, ``llama.cpp``, ``ollama`` or ``generic``. It says
    which fields are known, and how the length of a completion is written. Default: by the address,
    or what the probe finds; it finds nothing if there are no models. Then it should be set."""
    allowed_fields: Sequence[str] = ()
    """Fields of requests that are accepted although they are not known, or change the price, under
    caps and limits too."""
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    """Virtual models, by their name: see below."""
    state_directory: str | None = None
    """Directory of all that the gateway keeps: the [account of calls](columns.md#account-of-calls),
    what counts against caps, the leases of workers and the decision log. A gateway that takes the
    place of another uses the same. Default: ``adacompute/PORT`` below ``$XDG_STATE_HOME`` or
    ``~/.local/state``."""
    decision_log: str = NO_LOG
    """What is logged of each [decision](columns.md#decisions) in ``decisions`` of the state
    directory: ``none`` (no log), ``answers`` (parsed answers and hashes of questions) or ``texts``
    (questions and completions too)."""
    keep_days: float = 90.0
    """Age after which old files of the account of calls and of the decision log are deleted. Each
    of them keeps at most 10 GB."""
    account_store: str | None = field(default=None, repr=False)
    """Redis server (``redis://…``) in which gateways on several hosts share what was spent.
    Default: ``accounts.sqlite`` in the state directory."""
    caps: Sequence[CapConfig] = ()
    """Limits on what is spent per day, per month or altogether: see below."""
    when_spent: str = "reject"
    """What a request without a sample gets when a cap is reached: ``reject`` (an error) or
    ``cheapest`` (one sample of the cheapest arm)."""
    token_prices: str | None = None
    """File with the token prices of every upstream model."""

    def __post_init__(self) -> None:
        for upstream in (self.upstream(), *self.upstreams.values()):
            upstream.check_port(self.port)
        for name in _POSITIVE:
            check_positive(getattr(self, name), name)
        if not 0 <= self.shutdown_delay_s < math.inf:
            raise ConfigError(
                f"shutdown_delay_s must be a number of 0 or more, not {self.shutdown_delay_s}"
            )
        if not 0 <= self.port <= _MAX_PORT:
            raise ConfigError(f"port must be a number from 0 to {_MAX_PORT}, not {self.port}")
        for name, known in (
            ("log_format", FORMATS),
            ("log_level", LEVELS),
            ("when_spent", WHEN_SPENT),
            ("decision_log", DECISION_LOGS),
            ("upstream_kind", (None, *get_args(UpstreamKind))),
        ):
            if (value := getattr(self, name)) not in known:
                names = ", ".join(filter(None, known))
                raise ConfigError(f"{name} must be one of {names}, not {value!r}")
        for name in ("max_samples", "max_output_tokens"):
            if (limit := getattr(self, name)) is not None:
                check_positive(limit, name)
        if self.account_store is not None and "://" not in self.account_store:
            raise ConfigError(
                f"account_store must be the address of a Redis server, not {self.account_store!r}: "
                "the workers of one host share a file in state_directory"
            )
        check_caps(self)
        self._check_addresses()
        for name, model in self.models.items():
            check_name(name)
            model.check_upstreams(name, self.upstreams)
        check_tokens(self.bearer_tokens, "bearer_tokens")
        if self.bearer_tokens and self.forward_key:
            raise ConfigError(
                "forward_key would send the bearer token to the upstream: give bearer_tokens or "
                "forward_key, not both"
            )
        if self.admin_key is not None:
            check_tokens([self.admin_key], "admin_key")
        check_paths(self.allowed_paths)

    def _check_addresses(self) -> None:
        """Raise ConfigError if an address cannot be used, or can be reached by anyone."""
        for network in self.trusted_proxies:
            _check_network(network)
        if not self.bearer_tokens and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} can be reached from outside and there is no token: set "
                "bearer_tokens, or bind to 127.0.0.1"
            )

    def upstream(self, name: str | None = None) -> UpstreamConfig:
        """Return an upstream by its name; that of the gateway has none."""
        if name is not None:
            return self.upstreams[name]
        return UpstreamConfig(self.base_url, self.upstream_api_key)

    @property
    def state(self) -> Path:
        """The directory of all that the gateway keeps."""
        return Path(self.state_directory or default_state(self.port))

    @property
    def account_file(self) -> Path | None:
        """The file in which workers share what was spent; None if it is a Redis server."""
        return self.state / ACCOUNTS if self.account_store is None else None

    def open_register(self) -> Register:
        """Return the register in which workers and replicas share what was spent."""
        if self.account_store is not None:
            return RedisRegister(self.account_store)
        self._make_state()
        return SqliteRegister(self.state / ACCOUNTS)

    def open_calls(self) -> CallFile:
        """Return the file that this process records its calls in; it is not opened yet."""
        return CallFile(self.state, keep_days=self.keep_days)

    def open_decisions(self) -> DecisionLog | None:
        """Return the decision log, if there is one."""
        if self.decision_log == NO_LOG:
            return None
        self._make_state()
        return DecisionLog(self.state / DECISIONS, keep_days=self.keep_days)

    def _make_state(self) -> None:
        with suppress(OSError):  # who opens a file there reports that it cannot be used
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def admin_port(self) -> int:
        """The port of the admin pages: the one after the gateway's."""
        return 0 if self.port in {0, _MAX_PORT} else self.port + 1

    @property
    def timeouts(self) -> Timeouts:
        """Time limits of one attempt of a call, which may take as long as a whole request."""
        return Timeouts(first_byte_s=self.first_byte_timeout_s, total_s=self.timeout_s)

    @property
    def retries(self) -> RetryPolicy:
        """Retries of a call while a client waits."""
        return RetryPolicy(max_attempts=self.max_attempts, max_wait_s=_MAX_WAIT_S)


def _check_network(value: str) -> None:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ConfigError(
            f"trusted_proxies must be addresses or networks, such as 10.0.0.0/8: {error}"
        ) from None


def read_config(path: Path, given: Mapping[str, Any]) -> Config:
    """Read a file; options of the command line take precedence over it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    table = content.get("serve")
    if not isinstance(table, dict):
        raise ConfigError(f"{path} has no table [serve]")
    try:
        return make_config({**expand_variables(table), **given}, beside=path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def make_config(content: Mapping[str, Any], *, beside: Path = Path()) -> Config:
    """Make a configuration from plain values; relative paths start at ``beside``."""
    values = {name.replace("-", "_"): value for name, value in content.items()}
    models = as_table(values.get("models", {}), "models")
    values["models"] = {
        name: build_settings(
            ModelConfig, _resolve_paths(table, where, ("bundle", "token_prices"), beside), where
        )
        for name, table in models.items()
        for where in [f"models.{name}"]
    }
    values["upstreams"] = {
        name: build_settings(UpstreamConfig, as_table(table, where), where)
        for name, table in as_table(values.get("upstreams", {}), "upstreams").items()
        for where in [f"upstreams.{name}"]
    }
    values["caps"] = tuple(
        build_settings(CapConfig, as_table(table, "caps"), "caps")
        for table in values.get("caps", ())
    )
    values = _resolve_paths(values, "serve", ("token_prices", "state_directory"), beside)
    return build_settings(Config, values, "serve")


def _resolve_paths(
    table: object, where: str, names: tuple[str, ...], beside: Path
) -> dict[str, Any]:
    found = dict(as_table(table, where))
    for name in names:
        if isinstance(found.get(name), str):
            found[name] = str(beside / found[name])
    return found
