"""Configuration: all settings of a gateway, checked before it starts.

A TOML file has one table, ``[serve]``, with a table of its own for each virtual model, for the keys
of clients and for the log. ``${NAME}`` in a value is replaced by an environment variable. An
unknown setting is an error that lists the known ones, and every value is checked here. It opens no
connection and loads no policy.
"""

from __future__ import annotations

import ipaddress
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.gateway.answer_field import check_pointer
from adacompute.gateway.body import MAX_ELEMENTS
from adacompute.gateway.browser_checks import is_loopback
from adacompute.gateway.caps import WHEN_SPENT, CapConfig, check_caps
from adacompute.gateway.clients import ALLOWED_PATHS, ClientLimits, check_digest, check_paths
from adacompute.gateway.log_settings import CallsConfig, LogConfig
from adacompute.gateway.logs import FORMATS, LEVELS
from adacompute.gateway.openai_requests import check_name
from adacompute.gateway.settings import as_table, build_settings, expand_variables
from adacompute.models.messages import RetryPolicy, Timeouts
from adacompute.models.openai_format import check_url
from adacompute.sampling.grading import MAX_QUEUE, TIMEOUT_S
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import Register
from adacompute.spending.sqlite_register import SqliteRegister

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ORIGIN = re.compile(r"https?://[^/\s*]+")
_MAX_PORT = 65_535
_MAX_WAIT_S = 10.0
_POSITIVE = (
    "workers",
    "max_request_line_bytes",
    "max_header_bytes",
    "max_headers",
    "max_connections_per_address",
    "max_body_mb",
    "max_json_elements",
    "max_reply_mb",
    "max_concurrency",
    "max_samples",
    "max_upstream_failures",
    "timeout_s",
    "first_byte_timeout_s",
    "body_timeout_s",
    "grader_timeout_s",
    "max_grader_queue",
    "max_attempts",
    "drain_s",
    "sse_keepalive_s",
)

_MODEL_LIMITS = (
    "max_rounds",
    "deadline_s",
    "max_budget",
    "max_samples",
    "max_concurrency",
    "max_output_tokens",
    "requests_per_minute",
)

ACCOUNTS = "accounts.sqlite"
"""Name of the file in which workers share what was spent."""


@dataclass(frozen=True)
class ModelConfig:
    """A virtual model: its policy, its budget and its grader.

    ``model`` is the upstream's name for the model. ``audit_share`` is the share of requests that
    are sampled to the largest level after the answer; ``audit_max_share`` limits what that may
    take, as a share of the samples that were served. ``accept_verdict`` serves a policy whose
    calibration found no gain. ``pacing`` holds the mean cost of all requests at the budget.
    ``answer_field`` is a JSON pointer to what is graded of answers to
    requests for JSON, which are forwarded without it.
    """

    bundle: str
    budget: float
    model: str | None = None
    grader: str | None = None
    max_rounds: int | None = None
    deadline_s: float | None = None
    accept_verdict: bool = False
    pacing: bool = True
    shadow: bool = False
    audit_share: float = 0.0
    audit_max_share: float = 0.05
    max_budget: float | None = None
    max_samples: int | None = None
    max_concurrency: int | None = None
    max_output_tokens: int | None = None
    requests_per_minute: int | None = None
    token_prices: str | None = None
    scorer: str | None = None
    answer_field: str | None = None

    def __post_init__(self) -> None:
        _check_positive(self.budget, "budget")
        if self.answer_field is not None:
            check_pointer(self.answer_field, "answer_field")
        for name in _MODEL_LIMITS:
            if (value := getattr(self, name)) is not None:
                _check_positive(value, name)
        for name in ("audit_share", "audit_max_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a share from 0 to 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Config:
    """A gateway: its upstream, its models, its clients and its limits.

    ``client_keys`` maps names of clients to SHA-256 digests of their keys, and ``client_limits``
    the same names to what the client may ask for. ``account_store`` is where replicas share what
    was spent: the address of a Redis server, or a file, by default in the directory of calls.
    """

    base_url: str
    upstream_api_key: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_key: str | None = field(default=None, repr=False)
    log_format: str = "text"
    log_level: str = "info"
    workers: int = 1
    forward_key: bool = False
    max_request_line_bytes: int = 8_192
    max_header_bytes: int = 32_768
    max_headers: int = 100
    max_connections_per_address: int = 100
    trusted_proxies: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()
    max_body_mb: float = 32.0
    max_json_elements: int = MAX_ELEMENTS
    max_reply_mb: float = 16.0
    max_concurrency: int = 10_000
    max_samples: int = 64
    max_output_tokens: int | None = None
    timeout_s: float = 600.0
    first_byte_timeout_s: float = 120.0
    body_timeout_s: float = 30.0
    grader_timeout_s: float = TIMEOUT_S
    max_grader_queue: int = MAX_QUEUE
    max_attempts: int = 3
    max_retry_share: float = 0.2
    max_upstream_failures: int = 5
    shutdown_delay_s: float = 0.0
    drain_s: float = 30.0
    sse_keepalive_s: float = 5.0
    probe: bool = True
    traces: bool = False
    allowed_paths: Sequence[str] = ALLOWED_PATHS
    allow_stored_responses: bool = False
    client_keys: Mapping[str, str] = field(default_factory=dict)
    client_limits: Mapping[str, ClientLimits] = field(default_factory=dict)
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    log: LogConfig | None = None
    calls: CallsConfig = field(default_factory=CallsConfig)
    account_store: str | None = field(default=None, repr=False)
    caps: Sequence[CapConfig] = ()
    when_spent: str = "reject"
    token_prices: str | None = None

    def __post_init__(self) -> None:
        check_url(self.base_url)
        key = self.upstream_api_key
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError("upstream_api_key contains characters that no header can carry")
        for name in _POSITIVE:
            _check_positive(getattr(self, name), name)
        if not 0 <= self.shutdown_delay_s < math.inf:
            raise ConfigError(
                f"shutdown_delay_s must be a number of 0 or more, not {self.shutdown_delay_s}"
            )
        if not 0 <= self.max_retry_share <= 1:
            raise ConfigError(
                f"max_retry_share must be a share from 0 to 1, not {self.max_retry_share}"
            )
        for name in ("port", "admin_port"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= _MAX_PORT:
                raise ConfigError(f"{name} must be a number from 0 to {_MAX_PORT}, not {value}")
        for name, known in (
            ("log_format", FORMATS),
            ("log_level", LEVELS),
            ("when_spent", WHEN_SPENT),
        ):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if self.max_output_tokens is not None:
            _check_positive(self.max_output_tokens, "max_output_tokens")
        check_caps(self)
        self._check_addresses()
        for name in self.models:
            check_name(name)
        for client, digest in self.client_keys.items():
            _check_key(client, digest)
        if self.admin_key is not None:
            _check_key("admin_key", self.admin_key)
        check_paths(self.allowed_paths)
        if unknown := sorted(set(self.client_limits) - set(self.client_keys)):
            raise ConfigError(f"client_limits names {unknown[0]!r}, which has no client key")

    def _check_addresses(self) -> None:
        """Raise ConfigError if an address cannot be used, or can be reached by anyone."""
        for network in self.trusted_proxies:
            _check_network(network)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins must be like https://example.com, not {origin!r}"
                )
        upstream = urlsplit(self.base_url)
        if upstream.port == self.port and is_loopback(upstream.hostname or ""):
            raise ConfigError(
                f"base_url {self.base_url} is the address of this gateway itself: "
                "give the address of the upstream, or another port"
            )
        if not self.client_keys and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} can be reached from outside and there are no client keys: "
                "add a table [serve.client_keys], or bind to 127.0.0.1"
            )

    @property
    def account_file(self) -> Path | None:
        """The file in which workers share what was spent; None if it is a Redis server."""
        store = self.account_store
        if store is None:
            return self.calls.directory_for(self.port) / ACCOUNTS
        return None if "://" in store else Path(store)

    def open_register(self) -> Register:
        """Return the register in which workers and replicas share what was spent."""
        path = self.account_file
        if path is None:
            return RedisRegister(self.account_store or "")
        with suppress(OSError):  # the register reports that it cannot be used
            path.parent.mkdir(parents=True, exist_ok=True)
        return SqliteRegister(path)

    @property
    def admin_port_or_default(self) -> int:
        """The port of the admin pages: the one after the gateway's, if none is given."""
        if self.admin_port is not None:
            return self.admin_port
        return 0 if self.port in {0, _MAX_PORT} else self.port + 1

    @property
    def timeouts(self) -> Timeouts:
        """Time limits of one attempt of a call, which may take as long as a whole request."""
        return Timeouts(first_byte_s=self.first_byte_timeout_s, total_s=self.timeout_s)

    @property
    def retries(self) -> RetryPolicy:
        """Retries of a call while a client waits."""
        return RetryPolicy(max_attempts=self.max_attempts, max_wait_s=_MAX_WAIT_S)


def _check_key(name: str, digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"the key of {name!r} must be its SHA-256 in 64 hexadecimal digits, as "
            "`printf %s KEY | sha256sum` prints it"
        )
    check_digest(name, digest)


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
    values["client_keys"] = {
        client: str(digest).lower()
        for client, digest in as_table(values.get("client_keys", {}), "client_keys").items()
    }
    limits = as_table(values.get("client_limits", {}), "client_limits")
    values["client_limits"] = {
        client: build_settings(ClientLimits, as_table(table, where), where)
        for client, table in limits.items()
        for where in [f"client_limits.{client}"]
    }
    if values.get("log") is not None:
        values["log"] = build_settings(
            LogConfig, _resolve_paths(values["log"], "log", ("directory",), beside), "log"
        )
    values["caps"] = tuple(
        build_settings(CapConfig, as_table(table, "caps"), "caps")
        for table in values.get("caps", ())
    )
    calls = _resolve_paths(values.get("calls", {}), "calls", ("directory",), beside)
    values["calls"] = build_settings(CallsConfig, calls, "calls")
    return build_settings(Config, _resolve_paths(values, "serve", _paths(values), beside), "serve")


def _paths(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the settings that are paths; an address is none."""
    is_address = "://" in str(values.get("account_store"))
    return ("token_prices",) if is_address else ("token_prices", "account_store")


def _resolve_paths(
    table: object, where: str, names: tuple[str, ...], beside: Path
) -> dict[str, Any]:
    found = dict(as_table(table, where))
    for name in names:
        if isinstance(found.get(name), str):
            found[name] = str(beside / found[name])
    return found


def _check_positive(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value}")
