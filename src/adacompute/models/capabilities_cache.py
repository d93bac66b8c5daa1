"""Capabilities cache: the results of a probe, described in plain English and cached on disk.

Each capability has one row: what was tested, the result, and what follows for sampling. The cache
has one JSON file per server and model, in a directory of the caller's choice, and expires after a
day by default, because servers change. This module sends no requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

from adacompute.core.errors import DataError
from adacompute.models.formats.openai_format import check_url
from adacompute.models.messages import Capabilities

DAY_S = 86_400.0
"""How long cached capabilities are valid by default."""

_UNKNOWN = "unknown"
_ONE_PER_CALL = "one call per sample, several at a time"
_ONE_AT_0 = "one call per sample at temperature 0"
_ONE_WITH_SEED = "with a seed, one call per sample"
_STORED_ONLY = "only stored samples can be repeated"
_NO_LOGPROBS = "not requested; samples have no log-probabilities"
_LIMIT_FIELD = "token limits are sent as {max_tokens_field}"
_LIMIT_RESULTS = {
    "honoured": ("limits the tokens", _LIMIT_FIELD),
    "ignored": ("ignored", _LIMIT_FIELD),
    "rejected": ("rejected", _LIMIT_FIELD),
    "unknown": (_UNKNOWN, _LIMIT_FIELD),
}

_KIND_FIELDS = "under limits, its own fields are known"

_DESCRIPTIONS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "kind": (
        "kind of server",
        {
            "openai": ("OpenAI", _KIND_FIELDS),
            "vllm": ("vLLM", _KIND_FIELDS),
            "llama.cpp": ("llama.cpp", _KIND_FIELDS),
            "ollama": ("Ollama", _KIND_FIELDS),
            "generic": (_UNKNOWN, "under limits, the fields of all kinds are known"),
        },
    ),
    "chat": (
        "chat/completions",
        {
            "available": ("available", "chat prompts can be sent"),
            "unavailable": ("not available", "use completion prompts"),
            "unknown": (_UNKNOWN, "chat prompts may fail"),
        },
    ),
    "completions": (
        "completions",
        {
            "available": ("available", "completion prompts can be sent"),
            "unavailable": ("not available", "use chat prompts"),
            "unknown": (_UNKNOWN, "completion prompts may fail"),
        },
    ),
    "n": (
        "several choices per call (n)",
        {
            "native": ("supported", "one call returns several samples and pays the prompt once"),
            "limited": ("up to {max_n}", "one call returns up to {max_n} samples"),
            "ignored": ("ignored: one choice", _ONE_PER_CALL),
            "rejected": ("rejected", _ONE_PER_CALL),
            "unknown": (_UNKNOWN, _ONE_PER_CALL),
        },
    ),
    "n_at_temperature_0": (
        "n at temperature 0",
        {
            "accepted": ("accepted", "but all samples will be equal"),
            "rejected": ("rejected", _ONE_AT_0),
            "unknown": (_UNKNOWN, _ONE_AT_0),
        },
    ),
    "seed": (
        "seed",
        {
            "reproducible": ("repeats a sample", "samples can be repeated on an idle server"),
            "ignored": ("does not repeat a sample", _STORED_ONLY),
            "rejected": ("rejected", f"no seed is sent; {_STORED_ONLY}"),
            "unknown": (_UNKNOWN, _STORED_ONLY),
        },
    ),
    "seed_with_n": (
        "one seed with n",
        {
            "distinct": ("samples differ", "n can be used with a seed"),
            "identical": ("samples are copies", _ONE_WITH_SEED),
            "unknown": (_UNKNOWN, _ONE_WITH_SEED),
        },
    ),
    "logprobs": (
        "log-probabilities",
        {
            "returned": ("returned", "tokens are counted per sample; votes can use confidence"),
            "missing": ("not returned", _NO_LOGPROBS),
            "rejected": ("rejected", _NO_LOGPROBS),
            "unknown": (_UNKNOWN, "requested, may be missing"),
        },
    ),
    "usage": (
        "usage counts",
        {
            "all": ("all choices of a call", "token counts are exact"),
            "one": ("one choice of a call only", "with n, tokens are counted from the samples"),
            "missing": ("nothing: no usage", "tokens are estimated from the text"),
            "unknown": (_UNKNOWN, "with n, tokens may be estimates"),
        },
    ),
    "stream_usage": (
        "usage in streams",
        {
            "returned": ("returned on request", "tokens of streams are exact"),
            "missing": ("not returned", "tokens of streams are estimated"),
            "rejected": ("rejected", "not requested; tokens of streams are estimated"),
            "unknown": (_UNKNOWN, "tokens of streams may be estimates"),
        },
    ),
    "cancel": (
        "closing the connection",
        {
            "stops": ("stops the generation", "cancelled samples cost little"),
            "continues": (
                "does not stop the generation",
                "cancelled samples cost as much as complete ones",
            ),
            "unknown": (_UNKNOWN, "cancelled samples are assumed to cost as much as complete ones"),
        },
    ),
    "max_tokens": ("max_tokens", _LIMIT_RESULTS),
    "max_completion_tokens": ("max_completion_tokens", _LIMIT_RESULTS),
    "reasoning_effort": (
        "reasoning_effort",
        {
            "effective": ("changes the answer", "efforts can be arms; measure what they cost"),
            "ignored": ("accepted, changes nothing", "efforts cannot be arms"),
            "rejected": ("rejected", "efforts cannot be arms"),
            "unknown": (_UNKNOWN, "measure before using efforts as arms"),
        },
    ),
}


def describe(capabilities: Capabilities) -> list[tuple[str, str, str]]:
    """Describe each capability for people: what was tested, the result, and what follows."""
    values = {
        "max_n": capabilities.max_n,
        "max_tokens_field": capabilities.max_tokens_field,
    }
    rows = []
    for field, (tested, results) in _DESCRIPTIONS.items():
        result, consequence = results[getattr(capabilities, field)]
        rows.append((tested, result.format(**values), consequence.format(**values)))
    return rows


def cache_path() -> Path:
    """Directory of the cache: ``$XDG_CACHE_HOME/adacompute``."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "adacompute"


def save_cached(
    directory: Path, base_url: str, model: str, capabilities: Capabilities, *, ttl_s: float = DAY_S
) -> Path:
    """Cache capabilities for `ttl_s` seconds, atomically, and return the path of the file."""
    path = _file_path(directory, base_url, model)
    document = {
        "base_url": check_url(base_url),
        "model": model,
        "expires": time.time() + ttl_s,
        "capabilities": capabilities.to_json(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=directory, prefix=".probe-", delete=False, encoding="utf-8"
    ) as file:
        json.dump(document, file, indent=1)
    os.replace(file.name, path)  # noqa: PTH105 - a name, not a path
    _attempts_path(directory, base_url, model).unlink(missing_ok=True)
    return path


def record_attempt(directory: Path, base_url: str, model: str, *, window_s: float) -> int:
    """Record that a probe starts; return how many started lately and cached nothing, this included.

    ``window_s`` is how long an attempt counts. Raises OSError if the directory cannot be written.
    """
    path = _attempts_path(directory, base_url, model)
    now = time.time()
    try:
        before = [float(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        before = []
    recent = [started_at for started_at in before if now - window_s < started_at <= now]
    path.write_text("\n".join(map(repr, [*recent, now])), encoding="utf-8")
    return len(recent) + 1


def load_cached(directory: Path, base_url: str, model: str) -> Capabilities | None:
    """Return cached capabilities; None if there are none, or they expired or cannot be parsed."""
    try:
        document = json.loads(_file_path(directory, base_url, model).read_bytes())
        if document["base_url"] != check_url(base_url) or document["model"] != model:
            return None
        if not document["expires"] > time.time():
            return None
        return Capabilities.from_json(document["capabilities"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, DataError):
        return None


def _attempts_path(directory: Path, base_url: str, model: str) -> Path:
    return _file_path(directory, base_url, model).with_suffix(".attempts")


def _file_path(directory: Path, base_url: str, model: str) -> Path:
    name = hashlib.sha256(f"{check_url(base_url)}\n{model}".encode()).hexdigest()[:16]
    return directory / f"probe-{name}.json"
