"""Files that would need too much memory are found by their sizes, before they are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core import memory
from adacompute.core.errors import DataError
from adacompute.core.memory import MEMORY_BYTES, check_json, check_memory, check_parquet


def test_memory_above_the_limit_is_refused() -> None:
    check_memory(10.0, "file", limit=10)
    with pytest.raises(DataError, match="file"):
        check_memory(11.0, "file", limit=10)
    check_memory(MEMORY_BYTES, "file")
    with pytest.raises(DataError, match="file"):
        check_memory(2.0 * MEMORY_BYTES, "file")


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0"])
def test_the_values_of_long_documents_are_counted(value: bytes) -> None:
    short, long = b"[" + b",".join([value] * 10) + b"]", b"[" + b",".join([value] * 900_000) + b"]"
    check_json(short, "file", limit=1)
    check_json(long, "file", limit=1 << 30)
    with pytest.raises(DataError, match="file"):
        check_json(long, "file", limit=1 << 25)


def test_the_columns_of_tables_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"number": [0] * 100_000, "text": ["a"] * 100_000})
    pq.write_table(table, tmp_path / "table.parquet")
    found = pq.read_metadata(tmp_path / "table.parquet")
    monkeypatch.setattr(memory, "MEMORY_BYTES", 700_000)
    check_parquet(found, ["text"], "file")
    check_parquet(found, [], "file")
    with pytest.raises(DataError, match="file"):
        check_parquet(found, ["number"], "file")
