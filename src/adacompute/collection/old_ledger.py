"""Old ledger: takes over what a run had paid for when its samples were kept in SQLite.

Versions up to 0.9 wrote ``ledger.sqlite``, with the samples and the account of the maximum cost. It
is read once, into an empty store; the file stays as it is. It is the only module that knows the
old format.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from adacompute.collection.store import CollectionStore
from adacompute.core.errors import DataError
from adacompute.core.types import MAX_LEVEL
from adacompute.models.messages import Sample
from adacompute.storage.paid_samples import LOST, SCORE, Payment, has_segments, write_segment

LEDGER = "ledger.sqlite"
FORMAT = "2"

_KEYS = ("question", "arm_id", "sample", "cost", "score")
_SAMPLE_COLUMNS = (
    "text",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "mean_logprob",
    "is_estimated",
    "latency_s",
    "samples_per_call",
)
_LATER_COLUMNS = ("entropy", "top_logprobs", "min_logprob_window", "token_logprobs")
"""Columns that the first files of this format lack."""


def import_ledger(path: Path, store: CollectionStore) -> None:
    """Write the samples and the account of an old ledger to a store that has nothing yet."""
    if not path.is_file() or has_segments(store.segments):
        return
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            payments = _read(database, store)
        finally:
            database.close()
        if payments:
            write_segment(store.segments, 0, payments)
    except (sqlite3.Error, DataError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as the ledger of a run: {error}") from None
    store.note(payments)


def _read(database: sqlite3.Connection, store: CollectionStore) -> list[Payment]:
    """Return everything that was paid: samples, scores, and what else counted to the maximum."""
    found = database.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    if found is None or found[0] != FORMAT:
        raise sqlite3.DatabaseError(f"its format is {found and found[0]}, not {FORMAT}")
    if (damage := database.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(damage)
    rows = database.execute("SELECT arm_id, arm, model, template, settings FROM arms").fetchall()
    names = ("arm", "model", "template", "settings")
    arms: dict[int, dict[str, str]] = {
        arm_id: dict(zip(names, rest, strict=True)) for arm_id, *rest in rows
    }
    sampled = {one for (one,) in database.execute("SELECT DISTINCT arm_id FROM samples")}
    known = {row[1] for row in database.execute("PRAGMA table_info(samples)")}
    columns = [*_SAMPLE_COLUMNS, *(name for name in _LATER_COLUMNS if name in known)]
    query = f"SELECT {', '.join([*_KEYS, *columns])} FROM samples ORDER BY question, arm_id, sample"  # noqa: S608
    payments: list[Payment] = []
    found = database.execute(query).fetchall()
    if not all(0 <= number <= MAX_LEVEL for _, _, number, *_ in found):
        raise sqlite3.DatabaseError("it has samples with wrong numbers")
    store.register_arms([arm for arm_id, arm in arms.items() if arm_id in sampled])
    questions = list(dict.fromkeys(question for question, *_ in found))
    positions = dict(zip(questions, store.register_questions(questions), strict=True))
    for question, arm_id, number, cost, score, *rest in found:
        values: dict[str, Any] = dict(zip(columns, rest, strict=True))
        sample = Sample(**values | {"is_estimated": bool(values["is_estimated"])})
        where = (positions[question], arms[arm_id]["arm"], number)
        payments.append(Payment(*where, cost, sample))
        if score is not None:
            payments.append(Payment(*where, 0, None, SCORE, 0, score))
    rest = _read_held(database) - sum(one.cost for one in payments)
    if rest > 0:
        payments.append(Payment(0, None, 0, rest, None, LOST))
    return payments


def _read_held(database: sqlite3.Connection) -> int:
    """Return what counted against the maximum cost, which processes held when they were killed.

    An account has entries that begin with what was granted and what was given back.
    """
    try:
        rows = database.execute("SELECT value FROM register").fetchall()
    except sqlite3.OperationalError:  # a run without prices has no account
        return 0
    entries = [one for (value,) in rows for one in dict(json.loads(value)["entries"]).values()]
    return sum(int(granted) - int(returned) for granted, returned, *_ in entries)
