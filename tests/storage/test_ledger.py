from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adacompute.core.errors import DataError
from adacompute.storage.ledger import ADDED_COLUMNS, Ledger, StoredSample

ONE = StoredSample("q", 1, 0, "text", "stop", 9, 0, 3, 0, -0.5, False, 0.1, 1, 7)


def opened(path: Path) -> tuple[Ledger, int]:
    ledger = Ledger(path / "ledger.sqlite")
    return ledger, ledger.register_arm(arm="default", model="m", template="t", settings="{}")


def test_a_sample_is_stored_once_and_read_back(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    sample = replace(ONE, arm_id=arm_id, mean_logprob=None, prompt_tokens=None, score=0.5)
    assert ledger.record([sample, sample]) == 1
    assert ledger.record([replace(sample, text="another")]) == 0
    assert list(ledger.samples(arm_id)) == [sample]
    assert ledger.count(["q", "r"], arm_id, below=1) == (1, 1)
    assert ledger.count(["r"], arm_id, below=1) == (0, 0)
    assert ledger.totals()["cost"] == 7
    ledger.close()


def test_ledger_without_entropy_columns_keeps_its_paid_samples(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    sample = replace(ONE, arm_id=arm_id)
    ledger.record([sample])
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        for name in ADDED_COLUMNS:
            database.execute(f"ALTER TABLE samples DROP COLUMN {name}")
    database.close()
    ledger, arm_id = opened(tmp_path)
    other = replace(
        sample,
        sample=1,
        entropy=0.25,
        top_logprobs=5,
        min_logprob_window=-0.5,
        token_logprobs=b"packed",
    )
    ledger.record([other])
    assert list(ledger.samples(arm_id)) == [sample, other]
    ledger.close()


def test_a_score_is_added_once_and_to_the_same_text_only(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    sample = replace(ONE, arm_id=arm_id)
    ledger.record([sample, replace(sample, sample=1)])
    assert ledger.unscored("q", arm_id) == {0: sample, 1: replace(sample, sample=1)}
    scored = replace(sample, score=0.5, cost=9)
    ledger.record([scored, replace(scored, score=0.7), replace(scored, sample=1, text="another")])
    assert list(ledger.samples(arm_id)) == [scored, replace(sample, sample=1)]
    assert ledger.record([sample]) == 0, "and it stays"
    assert ledger.claim(["q"], arm_id, 2) == {}
    assert ledger.claim(["q"], arm_id, 3, scored=True) == {"q": [1, 2]}
    assert ledger.count(["q"], arm_id, below=2) == (2, 1)
    ledger.close()


def test_arm_ids_are_stable(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    other = ledger.register_arm(arm="default", model="m", template="t", settings='{"a":1}')
    ledger.close()
    again, same = opened(tmp_path)
    assert same == arm_id
    assert other != arm_id
    assert again.arms()[other]["settings"] == '{"a":1}'
    again.close()


def test_claim_returns_missing_samples(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    ledger.record([replace(ONE, arm_id=arm_id, question="a", sample=d) for d in (0, 2)])
    ledger.record([replace(ONE, arm_id=arm_id, question="b", sample=d) for d in range(3)])
    assert ledger.claim(["a", "b", "c"], arm_id, 3) == {"a": [1], "c": [0, 1, 2]}
    assert ledger.claim(["b"], arm_id, 5) == {"b": [3, 4]}, "more draws can be added later"
    ledger.close()


def test_two_ledgers_never_claim_the_same_question(tmp_path: Path) -> None:
    first, arm_id = opened(tmp_path)
    second, _ = opened(tmp_path)
    assert set(first.claim(["a", "b"], arm_id, 1)) == {"a", "b"}
    assert set(second.claim(["a", "b", "c"], arm_id, 1)) == {"c"}
    first.release(["a"], arm_id)
    assert set(second.claim(["a", "b"], arm_id, 1)) == {"a"}
    first.close()
    assert set(second.claim(["b"], arm_id, 1)) == {"b"}
    second.close()


def test_claims_of_a_killed_process_are_released(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from adacompute.storage.ledger import Ledger;"
        "ledger = Ledger(Path(sys.argv[1]) / 'ledger.sqlite');"
        "arm_id = ledger.register_arm(arm='default', model='m', template='t', settings='{}');"
        "print(sorted(ledger.claim(['a', 'b'], arm_id, 1)), flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -9
    assert killed.stdout == "['a', 'b']\n"
    ledger, arm_id = opened(tmp_path)
    assert set(ledger.claim(["a", "b"], arm_id, 1)) == {"a", "b"}
    ledger.close()


def test_claims_of_a_remote_owner_without_heartbeat_are_released(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as other:
        other.execute("INSERT INTO owners VALUES ('far:1', 'far', 1, 0.0)")
        other.execute("INSERT INTO claims VALUES ('a', ?, 'far:1')", (arm_id,))
    other.close()
    assert set(ledger.claim(["a"], arm_id, 1)) == {"a"}
    ledger.close()


def test_other_files_and_formats_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database, and long enough to be looked at as one" * 40)
    with pytest.raises(DataError, match="cannot be used as a ledger"):
        Ledger(path)
    other = tmp_path / "other.sqlite"
    Ledger(other).close()
    with sqlite3.connect(other) as db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    db.close()
    with pytest.raises(DataError, match="format 99"):
        Ledger(other)


def test_write_errors_are_data_errors(tmp_path: Path) -> None:
    ledger, arm_id = opened(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("DROP TABLE samples")
    db.close()
    with pytest.raises(DataError, match="cannot be written"):
        ledger.record([replace(ONE, arm_id=arm_id)])
    ledger.close()
    assert os.path.exists(tmp_path / "ledger.sqlite")  # noqa: PTH110
