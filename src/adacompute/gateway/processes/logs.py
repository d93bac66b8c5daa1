"""Logs: the lines that a gateway writes to standard error, as text or as JSON.

A record may carry ``fields``, which become members of the JSON object, or ``name=value`` in a line
of text. It knows nothing of decisions, which have a log of their own.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
FORMATS: tuple[str, ...] = get_args(LogFormat)
LEVELS: tuple[str, ...] = get_args(LogLevel)

TIME = "%Y-%m-%d %H:%M:%S"
LOG = logging.getLogger("adacompute.gateway")


def log(level: int, message: str, **fields: object) -> None:
    """Write a line with fields; those that are None are left out."""
    if LOG.isEnabledFor(level):
        # Not by LOG.log, which looks for the line of code that logs: there is one per request.
        record = logging.LogRecord(LOG.name, level, "", 0, message, None, None)
        record.fields = fields
        LOG.handle(record)


def set_up_logging(log_format: str, level: str) -> None:
    """Send all records of this process to standard error.

    As JSON, also what Python would write there by itself: warnings and unhandled exceptions.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("adacompute").setLevel(level.upper())
    # It warns of each invalid request: attackers would fill the log, and the gateway counts them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if log_format == "json":
        logging.captureWarnings(capture=True)
        logging.raiseExceptions = False  # standard error that is closed
        sys.excepthook = _log_exception
        sys.unraisablehook = lambda found: _log_exception(
            found.exc_type, found.exc_value, found.exc_traceback
        )
        threading.excepthook = lambda found: _log_exception(
            found.exc_type, found.exc_value, found.exc_traceback
        )


def _log_exception(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    """Write a line for an exception that nothing handles."""
    error = kind() if error is None else error
    LOG.critical("an exception was not handled: %r", error, exc_info=(kind, error, traceback))


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


class _TextFormatter(logging.Formatter):
    """A line for people: the message, then its fields."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._second, self._shown_second = 0, ""

    def formatTime(  # noqa: N802 - logging's
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        del datefmt
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._shown_second = datetime.fromtimestamp(second, UTC).strftime(TIME)
        return f"{self._shown_second},{int(record.msecs):03d}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        return f"{record.asctime} {record.levelname} {record.message}{fields}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in found.items() if value is not None}


def _shown(value: object) -> str:
    """Write a value so that a client cannot add a line or a field to the log."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)
