"""Memory: how much of it a file would need, judged from its sizes before it is read.

A small file can ask for a lot of memory: by compression, by a header that promises more than there
is, or by brackets that become objects. The estimates are lower bounds. This module reads no file.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from adacompute.core.errors import DataError

MEMORY_BYTES: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Memory of this machine; a file that needs more is refused."""

JSON_VALUE_BYTES = 64
"""Memory of one small value of a parsed JSON document."""

MAX_UNCOUNTED_BYTES = 1 << 20
"""The values of JSON documents up to this size are not counted."""

_COLUMN_BYTES = {"BOOLEAN": 1 / 8, "INT32": 4.0, "FLOAT": 4.0, "BYTE_ARRAY": 4.0}
_OTHER_COLUMN_BYTES = 8.0


def check_memory(n_bytes: float, name: str, *, limit: int | None = None) -> None:
    """Raise DataError for a file that would need more memory than the limit."""
    limit = MEMORY_BYTES if limit is None else limit
    if n_bytes > limit:
        raise DataError(
            f"{name} would need {n_bytes / 1e6:,.0f} MB of memory, above the limit of "
            f"{limit / 1e6:,.0f} MB, so it is not read"
        )


def check_json(data: bytes, name: str, *, limit: int | None = None) -> None:
    """Raise DataError for a JSON document whose values would need too much memory."""
    if len(data) > MAX_UNCOUNTED_BYTES:
        n_values = sum(map(data.count, (b",", b"[", b"{")))
        check_memory(len(data) + JSON_VALUE_BYTES * n_values, name, limit=limit)


def check_parquet(metadata: Any, columns: Collection[str], name: str) -> None:  # noqa: ANN401 - pyarrow's
    """Raise DataError for a Parquet file whose columns would need too much memory."""
    n_bytes = 0.0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in columns:
                width = _COLUMN_BYTES.get(column.physical_type, _OTHER_COLUMN_BYTES)
                n_bytes += column.total_uncompressed_size + width * column.num_values
    check_memory(n_bytes, name)
