"""Array files: arrays in one file, which somebody else may have written.

Sizes are checked before memory is allocated: by the header of each array, and by those of the
archive. Nothing is pickled. This module does not know what the arrays mean.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from adacompute.core.errors import DataError
from adacompute.core.memory import check_memory

_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def pack_arrays(arrays: Mapping[str, Any], *, compress: bool = True) -> bytes:
    """Return arrays as the content of one file; ValueError if they contain objects."""
    buffer, save = io.BytesIO(), np.savez_compressed if compress else np.savez
    save(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack_arrays(data: bytes, name: str, *, limit: int) -> dict[str, Any]:
    """Return the arrays of a file; DataError if it is damaged or they would need much memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            check_memory(sum(one.file_size for one in entries), name, limit=limit)
            return {
                one.filename.removesuffix(".npy"): _read_array(archive.read(one)) for one in entries
            }
    except DataError:
        raise
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        OverflowError,
        NotImplementedError,  # an unknown compression
        RuntimeError,  # an encrypted archive
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{name} is damaged ({error})") from None


def _read_array(data: bytes) -> Any:  # noqa: ANN401 - an array of any type
    """Return an array whose header promises exactly the bytes that follow it."""
    file = io.BytesIO(data)
    read_header = _READ_HEADER.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise ValueError("an array has an unknown format")
    shape, _, kind = read_header(file)
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(data) - file.tell():
        raise ValueError(f"an array of shape {shape} does not have the bytes for it")
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
