"""Probing: find out in the background what the upstream supports, while requests are served.

Until it is known, samples are requested one per call, which every server supports. One process
probes at a time; the others then find its result in the cache. A failed probe is only logged. It
knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from adacompute.core.errors import AdaComputeError, ModelError, RequestRejected
from adacompute.gateway.call_log import CallLog, CallOrigin, CallRecorder
from adacompute.gateway.config import MB, Config
from adacompute.gateway.exchange import NO_MODEL
from adacompute.models.capabilities_cache import cache_path, load_cached, save_cached
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe

LOG = logging.getLogger("adacompute.gateway.probing")
NO_CLIENT = "-"
"""Client of calls that the gateway makes for itself."""

LOADING_TIMEOUT_S = 60.0
"""How long a server that fails, for example while it loads its model, is probed again."""

LOCK_WAIT_S = 0.2
MIN_WAIT_S, MAX_WAIT_S = 0.5, 8.0


def needs_probe(capabilities: Capabilities) -> bool:
    """Whether nothing is known about a server yet."""
    return capabilities == Capabilities()


async def probe_upstreams(config: Config, upstreams: Iterable[Upstream], calls: CallLog) -> None:
    """Find the capabilities of each upstream, by the cache or a probe, and set them.

    The calls of a probe are recorded in ``calls``.
    """
    by_model: dict[str, list[Upstream]] = {}
    for upstream in upstreams:
        by_model.setdefault(upstream.model, []).append(upstream)
    for model, same in by_model.items():
        try:
            found = await _find_capabilities(config, model, calls)
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


async def _find_capabilities(config: Config, model: str, calls: CallLog) -> Capabilities:
    async with _one_process_at_a_time():
        known = load_cached(cache_path(), config.base_url, model)
        if known is None:
            known = await _probe_when_loaded(config, model, calls)
            with suppress(OSError):  # without a cache, each process probes for itself
                save_cached(cache_path(), config.base_url, model, known)
        return known


async def _probe_when_loaded(config: Config, model: str, calls: CallLog) -> Capabilities:
    """Probe a server; while it fails but rejects nothing, try again for a bounded time."""
    end, wait_s = time.monotonic() + LOADING_TIMEOUT_S, MIN_WAIT_S
    origin = CallOrigin("probe", client=NO_CLIENT, model=NO_MODEL, purpose="probe")
    async with Upstream(
        config.base_url,
        model,
        api_key=config.upstream_api_key,
        max_reply_bytes=int(config.max_reply_mb * MB),
        tracker=CallRecorder(calls, origin),
    ) as upstream:
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
async def _one_process_at_a_time() -> AsyncIterator[None]:
    """Wait until no other process of this user probes; without a cache directory, do not wait."""
    try:
        cache_path().mkdir(parents=True, exist_ok=True)
        file = (cache_path() / "probe.lock").open("w")
    except OSError:
        yield
        return
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_WAIT_S)
        yield
