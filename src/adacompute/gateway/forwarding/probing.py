"""Probing: find out in the background what the upstream supports, while requests are served.

Until it is known, samples are requested one per call, which every server supports. One process
probes at a time; the others then find its result in the cache. Without a cache there is no probe,
and few probes are started in a row, so that a gateway that is restarted again and again does not
pay for each start. A failed probe is only logged. It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from adacompute.core.errors import AdaComputeError, DataError, ModelError, RequestRejected
from adacompute.gateway.accounting.call_log import CallLog, CallOrigin, CallRecorder
from adacompute.gateway.connection.exchange import NO_MODEL
from adacompute.models.capabilities_cache import (
    cache_path,
    load_cached,
    record_attempt,
    save_cached,
)
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe

LOG = logging.getLogger("adacompute.gateway.forwarding.probing")
LOADING_TIMEOUT_S = 60.0
"""How long a server that fails, for example while it loads its model, is probed again."""

MAX_ATTEMPTS, ATTEMPT_WINDOW_S = 3, 600.0
"""Probes that may be started in some seconds without a result, for example in a restart loop."""

LOCK_WAIT_S, LOCK_TIMEOUT_S = 0.2, 120.0
"""How often to look whether another process has ended its probe, and how long to wait for it."""

MIN_WAIT_S, MAX_WAIT_S = 0.5, 8.0

PROBE_SAMPLES = 100
"""About how many samples one probe draws."""


def needs_probe(capabilities: Capabilities) -> bool:
    """Whether nothing is known about a server yet."""
    return replace(capabilities, kind="generic") == Capabilities()


async def probe_upstreams(upstreams: Iterable[Upstream], calls: CallLog) -> None:
    """Find the capabilities of each upstream, by the cache or a probe, and set them.

    The calls of a probe are recorded in ``calls``.
    """
    by_model: dict[tuple[str, str], list[Upstream]] = {}
    for upstream in upstreams:
        by_model.setdefault((upstream.base_url, upstream.model), []).append(upstream)
    for (_, model), same in by_model.items():
        try:
            found = await _find_capabilities(same[0], calls)
        except AdaComputeError as error:
            LOG.warning(
                "%s: the probe failed. Voting works, but each sample is requested in a call of "
                "its own. Cause: %s",
                model,
                error,
            )
        else:
            per_call = {"native": "any number", "limited": f"up to {found.max_n}"}
            LOG.info("%s: probed; samples per call: %s", model, per_call.get(found.n, "one"))
            for upstream in same:
                upstream.capabilities = found


async def _find_capabilities(upstream: Upstream, calls: CallLog) -> Capabilities:
    """Return what is known of an upstream, or probe it."""
    directory, url, model = cache_path(), upstream.base_url, upstream.model
    try:
        async with _one_process_at_a_time(directory):
            known = load_cached(directory, url, model)
            if known is None:
                n_attempts = record_attempt(directory, url, model, window_s=ATTEMPT_WINDOW_S)
                if n_attempts > MAX_ATTEMPTS:
                    raise ModelError(
                        f"{MAX_ATTEMPTS} probes in {ATTEMPT_WINDOW_S / 60:g} minutes found nothing"
                    )
                known = await _probe_when_loaded(upstream, calls)
                save_cached(directory, url, model, known)
            return known
    except OSError as error:
        raise DataError(
            f"its result cannot be kept in {directory} ({error.strerror}): let XDG_CACHE_HOME name "
            "a directory that can be written"
        ) from None


async def _probe_when_loaded(known: Upstream, calls: CallLog) -> Capabilities:
    """Probe a server; while it fails but rejects nothing, try again for a bounded time."""
    end, wait_s = time.monotonic() + LOADING_TIMEOUT_S, MIN_WAIT_S
    origin = CallOrigin("probe", model=NO_MODEL, purpose="probe")
    async with known.copy(tracker=CallRecorder(calls, origin)) as upstream:
        while True:
            try:
                return await probe(upstream)
            except RequestRejected:
                raise
            except ModelError:
                if time.monotonic() + wait_s > end:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)


@asynccontextmanager
async def _one_process_at_a_time(directory: Path) -> AsyncIterator[None]:
    """Wait until no other process of this user probes; raise ModelError if one does for long."""
    end = time.monotonic() + LOCK_TIMEOUT_S
    with _open_lock(directory) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ModelError(
                        f"another process has been probing for {LOCK_TIMEOUT_S:g} s"
                    ) from None
                await asyncio.sleep(LOCK_WAIT_S)
        yield


def _open_lock(directory: Path) -> TextIO:
    directory.mkdir(parents=True, exist_ok=True)
    return (directory / "probe.lock").open("w")
