from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import DataError
from adacompute.storage import decisions
from adacompute.storage.decisions import DecisionLog, read_decisions, read_today


def record(number: int, **more: Any) -> dict[str, Any]:
    samples = [{"answer": "4", "completion_chars": 1, "completion_tokens": 1}] * 2
    return {
        "id": f"d{number}",
        "time": float(number),
        "key": number % 3,
        "samples": samples,
        **more,
    }


def ids(directory: Path) -> list[str]:
    found: list[str] = read_decisions(directory)["id"].to_pylist()
    return found


def test_decisions_are_read_before_and_after_compaction(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.append(record(0))
    log.rotate()
    log.append(record(1))
    log.rotate()
    log.compact()
    log.append(record(2))
    assert ids(tmp_path) == ["d0", "d1", "d2"]


def test_append_reports_a_full_file(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, rotate_bytes=400)
    assert [log.append(record(i)) for i in range(3)] == [False, False, True]


def test_compacted_samples_have_one_row_per_sample(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    for i in range(4):
        log.append(record(i))
    log.rotate()
    assert log.compact() == 4
    (path,) = tmp_path.glob("samples-*.parquet")
    rows = pq.read_table(path).to_pylist()
    assert [(row["question_id"][-1], row["sample"]) for row in rows] == [
        *(("0", 0), ("0", 1), ("1", 0), ("1", 1), ("2", 0), ("2", 1)),
        *(("0", 2), ("0", 3)),
    ]


def test_a_truncated_line_is_skipped(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.append(record(0))
    (active,) = tmp_path.glob("active-*.jsonl")
    with active.open("ab") as file:
        file.write(b'{"id": "half')
    assert ids(tmp_path) == ["d0"]


def test_retention_deletes_tables_by_age_and_size(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, keep_days=1.0)
    log.append(record(0))
    log.rotate()
    log.compact()
    for path in tmp_path.glob("*.parquet"):
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    log.append(record(1))
    log.rotate()
    log.compact()
    assert ids(tmp_path) == ["d1"]
    log.keep_bytes = 1
    log.compact()
    with pytest.raises(DataError, match="no decisions"):
        read_decisions(tmp_path)


def test_decisions_survive_sigkill(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from adacompute.storage.decisions import DecisionLog\n"
        "log = DecisionLog(pathlib.Path(sys.argv[1]))\n"
        "for i in range(10**9):\n"
        "    log.append({'id': f'd{i}', 'time': float(i), 'key': 1, 'samples': []})\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    known = ids(tmp_path)
    assert known[: len(said)] == [f"d{i}" for i in said]
    DecisionLog(tmp_path).compact()  # the next process compacts the files of a dead one
    assert ids(tmp_path) == known


def test_a_full_disk_loses_only_the_truncated_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = DecisionLog(tmp_path), os.write
    log.append(record(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:9]))
        with pytest.raises(OSError, match="No space left"):
            log.append(record(1))
    log.append(record(2))
    assert ids(tmp_path) == ["d0", "d2"]


def test_a_file_compacted_in_parts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[pa.Table] = []
    for size in (1, 7, 10_000):
        monkeypatch.setattr(decisions, "BATCH_VALUES", size)
        log = DecisionLog(tmp_path / str(size))
        for i in range(40):
            log.append(record(i, price=float(len(tables))))
        log.rotate()
        assert log.compact() == 40
        (samples,) = log.directory.glob("samples-*.parquet")
        tables.append(pq.read_table(samples).sort_by([("question_id", "ascending")]))
        assert sorted(ids(log.directory)) == sorted(f"d{i}" for i in range(40))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    (numbers,) = {
        tuple(t.filter(pc.field("question_id") == f"{1:016x}")["sample"].to_pylist())
        for t in tables
    }
    assert sorted(numbers) == list(range(26))


def test_compaction_in_a_process(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, keep_days=1.0)
    log.append(record(0))
    log.rotate()
    log.append(record(1))
    log.compact_in_process()
    assert len(list(tmp_path.glob("decisions-*.parquet"))) == 1
    assert len(list(tmp_path.glob("active-*.jsonl"))) == 1
    assert ids(tmp_path) == ["d0", "d1"]
    log.rotate()
    (full,) = tmp_path.glob("full-*.jsonl")
    full.write_text('{"format": 3, "id": "d9", "key": "no number"}\n')
    with pytest.raises(OSError, match=r"exited with 1: .*no number"):
        log.compact_in_process()


def test_concurrent_compactions_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [DecisionLog(tmp_path), DecisionLog(tmp_path)]
    for i in range(6):
        logs[i % 2].append(record(i))
        logs[i % 2].rotate()
    compact, compacting, met = DecisionLog._compact_file, [0], []

    def slow(log: DecisionLog, path: Path) -> int:
        compacting[0] += 1
        met.append(compacting[0])
        time.sleep(0.01)
        n_decisions = compact(log, path)
        compacting[0] -= 1
        return n_decisions

    monkeypatch.setattr(DecisionLog, "_compact_file", slow)
    compacted: list[int] = []
    threads = [
        threading.Thread(target=lambda log=log: compacted.append(log.compact())) for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compacted) == [0, 6]
    assert max(met) == 1
    assert len(ids(tmp_path)) == 6


def test_a_locked_file_is_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(process: int, number: int) -> None:
        raise ProcessLookupError(process, number)

    monkeypatch.setattr(os, "kill", unseen)  # as from another container
    log = DecisionLog(tmp_path)
    log.append(record(0))
    DecisionLog(tmp_path).compact()
    log.append(record(1))
    assert ids(tmp_path) == ["d0", "d1"]
    log.rotate()
    assert log.compact() == 2


def test_missing_columns_are_read_as_null(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.append(record(0))
    log.rotate()
    log.compact()
    (path,) = tmp_path.glob("decisions-*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["today"]), path)
    log.append(record(1, today=True))
    assert read_decisions(tmp_path)["today"].to_pylist() == [None, True]


def test_an_absurd_bill_does_not_keep_a_file_from_being_rolled(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.append(record(0, samples=[{"answer": "4", "completion_tokens": 10**12}]))
    log.rotate()
    assert log.compact() == 1


@pytest.mark.parametrize("pattern", ["full-*.jsonl", "decisions-*.parquet"])
def test_a_log_of_another_format_is_rejected(tmp_path: Path, pattern: str) -> None:
    log = DecisionLog(tmp_path)
    log.append(record(0, format=1))
    log.rotate()
    if pattern.endswith("parquet"):
        (path,) = tmp_path.glob("full-*")
        path.unlink()
        pq.write_table(pa.table({"id": ["d0"]}), tmp_path / "decisions-1-1.parquet")
    with pytest.raises(DataError, match="format 1"):
        read_decisions(tmp_path)
    assert log.compact() == 0
    assert list(tmp_path.glob(pattern))  # it is kept as it was


def test_samples_of_today_are_read_from_lines_and_tables(tmp_path: Path) -> None:
    log, answered = DecisionLog(tmp_path), {"answers": [0, 0], "incomplete": False}
    for i in range(9):
        log.append(record(i, today=i % 2 == 0, **answered))
        if i in (2, 5):
            log.rotate()
            log.compact()
    log.append(record(9, today=True, answers=[0], incomplete=True))
    log.append(record(10, today=True, answers=[], incomplete=False))
    samples, n_kept, n_all = read_today(tmp_path)
    assert (n_kept, n_all, len(samples)) == (5, 11, 10)
    assert set(samples["decision_id"].to_pylist()) == {"d0", "d2", "d4", "d6", "d8"}
    counts = {f"{key:016x}": range(2 * n) for key, n in ((0, 2), (1, 1), (2, 2))}
    for name, numbers in counts.items():
        own = samples.filter(pc.field("question_id") == name)["sample"].to_pylist()
        assert own == list(numbers)
