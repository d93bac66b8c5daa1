"""Large bodies: read in a process of their own, so that other requests do not wait for the parser.

The process is started with the first large body and reads one at a time, within limits on its time
and its memory; what it sends back is small. It ends when its input does. A body that it cannot read
in time is refused. It is run by ``python -m adacompute.gateway.requests.large_bodies``.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import resource
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from adacompute.gateway.requests.reading import Arrival, ReadRequest, read_request
from adacompute.gateway.requests.refusals import BadRequest, Forbidden
from adacompute.gateway.requests.rules import Rules
from adacompute.models.formats.body import InvalidBody, count_elements

LARGE_BYTES, MANY_ELEMENTS = 250_000, 2_000
"""Bodies above this size, or with more brackets, commas and escapes, are read in the process."""

HUGE_BYTES = 1_000_000
"""Bodies above this size have a process of their own, so that others do not wait for them."""

MAX_ELEMENTS = 8_000_000
"""Brackets and commas of a body, those in texts included, above which it is not read at all."""

TIMEOUT_S = 5.0
MAX_MEMORY = 2**31
"""Bytes of memory that the process may use."""

TOO_MUCH = "the body cannot be parsed in time and memory"

_LENGTHS = struct.Struct("!QQ")


def is_large(data: bytes) -> bool:
    """Whether parsing a body could keep other requests waiting."""
    if len(data) <= MANY_ELEMENTS:
        return False
    return len(data) > LARGE_BYTES or count_elements(data) + data.count(b"\\u") > MANY_ELEMENTS


class LargeBodies:
    """The process that reads large bodies; ``close`` it at the end."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._killed: list[asyncio.subprocess.Process] = []
        self._lock = asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, rules: Rules, arrival: Arrival, data: bytes) -> ReadRequest:
        """Read a request as ``read_request`` does; those of one client wait for each other."""
        if count_elements(data) > MAX_ELEMENTS:
            raise BadRequest(f"the body has more than {MAX_ELEMENTS:,} brackets and commas")
        own = self._locks.setdefault(arrival.client, asyncio.Lock())
        async with own, self._lock:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await self._ask(pickle.dumps((rules, arrival)), data)
            except (TimeoutError, OSError, EOFError):
                self._kill()
                answer = (BadRequest, {"message": TOO_MUCH})
            except BaseException:
                self._kill()  # it must not answer the next request with what this one gets
                raise
        if not isinstance(answer, ReadRequest):
            error, arguments = answer
            raise error(**arguments)
        if answer.body is not None:
            answer.body.set_data(data)
        return answer

    async def close(self) -> None:
        """End the process, and wait until it has ended: its pipes must not outlive the loop."""
        self._kill()
        for process in self._killed:
            await process.wait()

    async def _ask(self, head: bytes, data: bytes) -> Any:  # noqa: ANN401 - what was pickled
        process = self._process
        if process is None or process.returncode is not None:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "adacompute.gateway.requests.large_bodies",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        if process.stdin is None or process.stdout is None:
            raise AssertionError
        process.stdin.writelines([_LENGTHS.pack(len(head), len(data)), head, data])
        await process.stdin.drain()
        size, _ = _LENGTHS.unpack(await process.stdout.readexactly(_LENGTHS.size))
        return pickle.loads(await process.stdout.readexactly(size))  # noqa: S301 - our own process

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._killed = [one for one in self._killed if one.returncode is None]
            self._killed.append(self._process)
            self._process = None


def _read(rules: Rules, arrival: Arrival, data: bytes) -> bytes:
    """Read a request, and return what the gateway needs of it, or the error to raise, pickled."""
    try:
        return pickle.dumps(read_request(rules, arrival, data).without_texts())
    except Forbidden as error:
        content = {"message": str(error), "code": error.code, "param": error.param}
        return pickle.dumps((Forbidden, content))
    except (BadRequest, InvalidBody) as error:
        param = getattr(error, "param", getattr(error, "field", None))
        return pickle.dumps((BadRequest, {"message": str(error), "param": param}))
    except (MemoryError, RecursionError):
        return pickle.dumps((BadRequest, {"message": TOO_MUCH}))


def main(given: BinaryIO, answers: BinaryIO) -> None:
    """Read requests until the input ends."""
    gc.disable()  # a parsed body has no cycles, and millions of objects
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, hard))
    while len(lengths := given.read(_LENGTHS.size)) == _LENGTHS.size:
        head_size, size = _LENGTHS.unpack(lengths)
        rules, arrival = pickle.loads(given.read(head_size))  # noqa: S301 - the gateway's own
        answer = _read(rules, arrival, given.read(size))
        answers.write(_LENGTHS.pack(len(answer), 0) + answer)
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
