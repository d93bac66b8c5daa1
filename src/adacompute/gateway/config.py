"""Configuration: everything a gateway is told, checked before it starts.

A TOML file has one table, ``[serve]``, with a table of its own for each virtual model, for clients'
keys and for the log. ``${NAME}`` in a text stands for an environment variable. What is not known is
refused with the list of what is, and every value is checked here, so that a gateway that starts can
run. It opens no connection and loads no policy.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.gateway.openai_api import check_name
from adacompute.models.messages import Retries, Timeouts
from adacompute.models.openai_format import check_url

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PORTS = 65_535
_LONGEST_WAIT_S = 10.0

MB = 1_000_000
"""Bytes of what settings count in MB."""


@dataclass(frozen=True)
class ModelConfig:
    """A virtual model: its policy, what it may spend, and how its answers are read.

    ``model`` is the upstream's name, ``holdout`` the share of requests drawn to the largest level,
    ``holdout_most`` how many draws that may take, as a share of those that were served.
    """

    policy: str
    budget: float
    model: str | None = None
    grader: str | None = None
    max_rounds: int | None = None
    latency_s: float | None = None
    shadow: bool = False
    holdout: float = 0.0
    holdout_most: float = 0.05
    tariff: str | None = None
    scorer: str | None = None

    def __post_init__(self) -> None:
        _above(self.budget, "budget")
        for name in ("max_rounds", "latency_s"):
            if (value := getattr(self, name)) is not None:
                _above(value, name)
        for name in ("holdout", "holdout_most"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a share from 0 to 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class LogConfig:
    """Where decisions are kept, how long, and whether with texts."""

    directory: str
    texts: bool = False
    roll_mb: float = 64.0
    keep_days: float = 30.0
    keep_mb: float = 10_000.0

    def __post_init__(self) -> None:
        for name in ("roll_mb", "keep_days", "keep_mb"):
            _above(getattr(self, name), name)


@dataclass(frozen=True)
class Config:
    """A gateway: its upstream, its models, who may use it, and its limits.

    ``keys`` are SHA-256 digests of clients' keys by the client's name.
    """

    base_url: str
    key: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    forward_key: bool = False
    max_body_mb: float = 32.0
    max_concurrency: int = 10_000
    timeout_s: float = 600.0
    first_byte_s: float = 120.0
    body_s: float = 30.0
    attempts: int = 3
    pause_s: float = 0.0
    drain_s: float = 30.0
    keep_alive_s: float = 5.0
    probe: bool = True
    traces: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    log: LogConfig | None = None

    def __post_init__(self) -> None:
        check_url(self.base_url)
        if self.key and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise ConfigError("key holds characters that no header can carry")
        names = "workers max_body_mb max_concurrency timeout_s first_byte_s body_s attempts drain_s"
        for name in (*names.split(), "keep_alive_s"):
            _above(getattr(self, name), name)
        if not 0 <= self.pause_s < math.inf:
            raise ConfigError(f"pause_s must be a number from 0 on, not {self.pause_s}")
        if not 0 <= self.port <= _PORTS:
            raise ConfigError(f"port is a number from 0 to {_PORTS}, not {self.port}")
        for name in self.models:
            check_name(name)
        for client, digest in self.keys.items():
            if not _DIGEST.fullmatch(digest):
                raise ConfigError(
                    f"the key of {client!r} must be its SHA-256 in 64 hexadecimal digits, as "
                    "`printf %s KEY | sha256sum` prints it"
                )
        upstream = urlsplit(self.base_url)
        if upstream.port == self.port and is_loopback(upstream.hostname or ""):
            raise ConfigError(
                f"base_url {self.base_url} is where this gateway itself would listen: "
                "name the server behind it, or another port"
            )
        if not self.keys and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} can be reached from outside and no keys are set: "
                "add a table [serve.keys], or bind to 127.0.0.1"
            )

    @property
    def timeouts(self) -> Timeouts:
        """How long one attempt of a call may take."""
        return Timeouts(first_byte_s=self.first_byte_s, total_s=self.timeout_s)

    @property
    def retries(self) -> Retries:
        """How often a call is attempted while a client waits."""
        return Retries(attempts=self.attempts, longest_s=_LONGEST_WAIT_S)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_config(path: Path, given: Mapping[str, Any]) -> Config:
    """Read a file, what was given on the command line going before it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    table = content.get("serve")
    if not isinstance(table, dict):
        raise ConfigError(f"{path} has no table [serve]")
    try:
        return make_config({**_expand(table), **given}, beside=path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def make_config(content: Mapping[str, Any], *, beside: Path = Path()) -> Config:
    """Build a configuration from plain values; paths are taken from the file that names them."""
    values = {name.replace("-", "_"): value for name, value in content.items()}
    models = _table(values.get("models", {}), "models")
    values["models"] = {
        name: _build(ModelConfig, _place(table, where, ("policy", "tariff"), beside), where)
        for name, table in models.items()
        for where in [f"models.{name}"]
    }
    values["keys"] = {
        client: str(digest).lower()
        for client, digest in _table(values.get("keys", {}), "keys").items()
    }
    if values.get("log") is not None:
        values["log"] = _build(
            LogConfig, _place(values["log"], "log", ("directory",), beside), "log"
        )
    return _build(Config, values, "serve")


def _place(table: object, where: str, names: tuple[str, ...], beside: Path) -> dict[str, Any]:
    found = dict(_table(table, where))
    for name in names:
        if isinstance(found.get(name), str):
            found[name] = str(beside / found[name])
    return found


def _table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a table, not {value!r}")
    return value


def _build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a dataclass of values whose names and types are checked."""
    values = {name.replace("-", "_"): value for name, value in values.items()}
    types = get_type_hints(kind)
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if strange := sorted(set(values) - known):
        raise ConfigError(f"{where} has no {strange[0]!r}; it has {', '.join(sorted(known))}")
    for name, value in values.items():
        values = {**values, name: _check(value, types[name], f"{where}.{name}")}
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).partition("argument")[2].strip(" s:")
        raise ConfigError(f"{where} lacks {missing}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check(value: Any, kind: Any, name: str) -> Any:  # noqa: ANN401 - any value of any type
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    plain = tuple(one for one in allowed if isinstance(one, type))
    if not plain:
        return value  # tables, which were built before
    if float in plain and type(value) is int:
        return float(value)
    if isinstance(value, plain) and not (isinstance(value, bool) and bool not in plain):
        return value
    expected = " or ".join(one.__name__ for one in plain if one is not type(None))
    shown = type(value).__name__ if name.endswith(".key") else repr(value)
    raise ConfigError(f"{name} must be {expected}, not {shown}")


def _expand(value: Any) -> Any:  # noqa: ANN401 - whatever TOML holds
    """Replace ``${NAME}`` in every text."""
    if isinstance(value, dict):
        return {name: _expand(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_expand(held) for held in value]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    if name not in os.environ:
        raise ConfigError(f"the environment variable {name} is not set")
    return os.environ[name]


def _above(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value}")
