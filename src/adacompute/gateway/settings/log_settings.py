"""Log settings: where decisions and calls are recorded, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from adacompute.core.errors import ConfigError
from adacompute.storage.calls import CallFile, default_directory

MB = 1_000_000
"""Bytes in the unit of settings that end in _mb."""


@dataclass(frozen=True)
class LogConfig:
    """Where decisions are logged, for how long, and whether with texts."""

    directory: str
    """Where decisions are logged."""
    texts: bool = False
    """Also log questions and completions."""
    rotate_mb: float = 64.0
    """Size at which a process starts a new file."""
    keep_days: float = 30.0
    """Age after which old files are deleted."""
    keep_mb: float = 10_000.0
    """Total size above which old files are deleted."""

    def __post_init__(self) -> None:
        _check_sizes(self)


@dataclass(frozen=True)
class CallsConfig:
    """Where calls to the upstream are recorded, and for how long."""

    directory: str | None = None
    """Where calls are recorded, with the store of accounts and the files of replicas. Default:
    ``adacompute/calls/PORT`` below ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    rotate_mb: float = 64.0
    """Size at which a process starts a new file."""
    keep_days: float = 90.0
    """Age after which old files are deleted."""
    keep_mb: float = 10_000.0
    """Total size above which old files are deleted."""

    def __post_init__(self) -> None:
        _check_sizes(self)

    def directory_for(self, port: int) -> Path:
        """Return the directory of the gateway on a port."""
        return default_directory(port) if self.directory is None else Path(self.directory)

    def open(self, port: int) -> CallFile:
        """Return the file that this process records its calls in; it is not opened yet."""
        return CallFile(
            self.directory_for(port),
            rotate_bytes=int(self.rotate_mb * MB),
            keep_days=self.keep_days,
            keep_bytes=int(self.keep_mb * MB),
        )


def _check_sizes(settings: LogConfig | CallsConfig) -> None:
    for name in ("rotate_mb", "keep_days", "keep_mb"):
        if not 0 < (value := getattr(settings, name)) < math.inf:
            raise ConfigError(f"{name} must be a number above 0, not {value}")
