"""Findings: what a probe found, in plain sentences, and kept on disk for a while.

Each capability has one row: what was asked, what was found, and what follows from it for whoever
draws samples. The cache is one JSON file for each server and model, in a directory of the caller's
choice, and forgets after a day unless told otherwise: servers change. It asks no server anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

from adacompute.core.errors import DataError
from adacompute.models.messages import Capabilities
from adacompute.models.openai_format import check_url

DAY_S = 86_400.0
"""How long findings are trusted by default."""

_UNKNOWN = "could not be told"

_SENTENCES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "chat": (
        "chat/completions",
        {
            "available": ("answers", "chat prompts can be sent"),
            "unavailable": ("not there", "use completion prompts"),
            "unknown": (_UNKNOWN, "chat prompts may fail"),
        },
    ),
    "completions": (
        "completions",
        {
            "available": ("answers", "completion prompts can be sent"),
            "unavailable": ("not there", "use chat prompts"),
            "unknown": (_UNKNOWN, "completion prompts may fail"),
        },
    ),
    "n": (
        "several choices a call (n)",
        {
            "native": ("given", "one call brings several draws and pays the prompt once"),
            "limited": ("up to {max_n}", "one call brings up to {max_n} draws"),
            "ignored": ("ignored: one choice", "one call a draw, several at once"),
            "rejected": ("rejected", "one call a draw, several at once"),
            "unknown": (_UNKNOWN, "one call a draw, several at once"),
        },
    ),
    "n_at_temperature_0": (
        "n at temperature 0",
        {
            "accepted": ("accepted", "though all draws will be equal"),
            "rejected": ("rejected", "one call a draw at temperature 0"),
            "unknown": (_UNKNOWN, "one call a draw at temperature 0"),
        },
    ),
    "seed": (
        "seed",
        {
            "reproducible": ("repeats a draw", "draws can be repeated while nothing else runs"),
            "ignored": ("does not repeat a draw", "only stored draws can be repeated"),
            "rejected": ("rejected", "no seed is sent; only stored draws can be repeated"),
            "unknown": (_UNKNOWN, "only stored draws can be repeated"),
        },
    ),
    "seed_with_n": (
        "one seed with n",
        {
            "distinct": ("draws differ", "n can be used with a seed"),
            "identical": ("draws are copies", "with a seed, one call a draw"),
            "unknown": (_UNKNOWN, "with a seed, one call a draw"),
        },
    ),
    "logprobs": (
        "log-probabilities",
        {
            "returned": (
                "given",
                "tokens are counted for each draw; ties can be broken by confidence",
            ),
            "missing": ("not given", "not asked for; draws have no confidence"),
            "rejected": ("rejected", "not asked for; draws have no confidence"),
            "unknown": (_UNKNOWN, "asked for, may be missing"),
        },
    ),
    "usage": (
        "usage counts",
        {
            "all": ("all choices of a call", "the bill is right"),
            "one": ("one choice of a call only", "with n, tokens are counted from the draws"),
            "missing": ("nothing: no usage", "tokens are estimated from the text"),
            "unknown": (_UNKNOWN, "with n, tokens may be estimates"),
        },
    ),
    "stream_usage": (
        "usage in streams",
        {
            "returned": ("given when asked for", "streams can be billed"),
            "missing": ("not given", "tokens of streams are estimated"),
            "rejected": ("rejected", "not asked for; tokens of streams are estimated"),
            "unknown": (_UNKNOWN, "tokens of streams may be estimates"),
        },
    ),
    "cancel": (
        "closing the connection",
        {
            "stops": ("stops the work", "cancelled draws cost little"),
            "continues": ("does not stop the work", "cancelled draws cost as much as full ones"),
            "unknown": (_UNKNOWN, "cancelled draws are taken to cost as much as full ones"),
        },
    ),
    "max_tokens": (
        "max_tokens",
        {
            "honoured": ("bounds a draw", "limits are sent as {max_tokens_field}"),
            "ignored": ("ignored", "limits are sent as {max_tokens_field}"),
            "rejected": ("rejected", "limits are sent as {max_tokens_field}"),
            "unknown": (_UNKNOWN, "limits are sent as {max_tokens_field}"),
        },
    ),
    "max_completion_tokens": (
        "max_completion_tokens",
        {
            "honoured": ("bounds a draw", "limits are sent as {max_tokens_field}"),
            "ignored": ("ignored", "limits are sent as {max_tokens_field}"),
            "rejected": ("rejected", "limits are sent as {max_tokens_field}"),
            "unknown": (_UNKNOWN, "limits are sent as {max_tokens_field}"),
        },
    ),
    "reasoning_effort": (
        "reasoning_effort",
        {
            "effective": ("changes the answer", "efforts can be levels; measure what they cost"),
            "ignored": ("accepted, changes nothing", "efforts are no levels here"),
            "rejected": ("rejected", "efforts are no levels here"),
            "unknown": (_UNKNOWN, "measure before using efforts as levels"),
        },
    ),
}


def describe(capabilities: Capabilities) -> list[tuple[str, str, str]]:
    """Say for people what was asked, what was found, and what follows from it."""
    names = {"max_n": capabilities.max_n, "max_tokens_field": capabilities.max_tokens_field}
    rows = []
    for field, (what, cases) in _SENTENCES.items():
        found, follows = cases[getattr(capabilities, field)]
        rows.append((what, found.format(**names), follows.format(**names)))
    return rows


def cache_path() -> Path:
    """Where what was found out about servers is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "adacompute"


def save_cached(
    directory: Path, base_url: str, model: str, capabilities: Capabilities, *, ttl_s: float = DAY_S
) -> Path:
    """Keep what was found for `ttl_s` seconds; the file is replaced whole or not at all."""
    place = _place(directory, base_url, model)
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
    os.replace(file.name, place)  # noqa: PTH105 - a name, not a path
    return place


def load_cached(directory: Path, base_url: str, model: str) -> Capabilities | None:
    """Return what was found, unless it is too old, unreadable or of another version."""
    try:
        document = json.loads(_place(directory, base_url, model).read_bytes())
        if document["base_url"] != check_url(base_url) or document["model"] != model:
            return None
        if not document["expires"] > time.time():
            return None
        return Capabilities.from_json(document["capabilities"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, DataError):
        return None


def _place(directory: Path, base_url: str, model: str) -> Path:
    name = hashlib.sha256(f"{check_url(base_url)}\n{model}".encode()).hexdigest()[:16]
    return directory / f"probe-{name}.json"
