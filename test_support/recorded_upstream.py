"""Recorded upstream: a fake upstream as a process that can be killed without losing its account.

Each call is in a file before it is answered. Run it with the file, the port (0 for a free one) and
the latency in seconds; it prints its port.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from adacompute.testing.fake_openai import FakeSettings, FakeUpstream

__all__ = ["UpstreamProcess"]


class _Recorded(FakeUpstream):
    def __init__(self, settings: FakeSettings, path: Path) -> None:
        super().__init__(settings)
        self._path = path

    def _record(self, *given: Any) -> None:  # noqa: ANN401 - as in the fake
        super()._record(*given)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._calls[-1]) + "\n")


class UpstreamProcess:
    """A recorded upstream in a process of its own, on the same port after each start."""

    def __init__(self, path: Path, latency_s: float = 0.02) -> None:
        self.port = 0
        self._path = path
        self._latency_s = latency_s
        self.start()

    @property
    def base_url(self) -> str:
        """URL to give to a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        own = [str(self._path), str(self.port), str(self._latency_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "test_support.recorded_upstream", *own], stdout=subprocess.PIPE
        )
        if self._process.stdout is None:
            raise AssertionError
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill the process: it cannot answer what it has received, nor close its connections."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def calls(self) -> list[dict[str, Any]]:
        """Return what was recorded since the first start."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]


def _main(given: Sequence[str]) -> None:
    path, port, latency_s = given
    settings = FakeSettings(latency_s=float(latency_s), record_calls=True, vary_tokens=True)
    upstream = _Recorded(settings, Path(path))

    def ready() -> None:
        sys.stdout.write(f"{upstream.port}\n")
        sys.stdout.flush()

    with suppress(KeyboardInterrupt):
        asyncio.run(upstream.run(int(port), ready, asyncio.Event()))


if __name__ == "__main__":
    _main(sys.argv[1:])
