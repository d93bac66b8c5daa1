"""Upstreams: the clients of each upstream, with its key.

There is the gateway's own upstream and those that models and arms name. Each has its own key, and
only the gateway's own upstream can get the keys of clients. It makes no calls itself.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from adacompute.gateway.accounting.account import Account
from adacompute.gateway.settings.config import Config
from adacompute.gateway.voting.virtual_model import SampledModel
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.connection.relay import Relay
from adacompute.models.connection.retry_budget import RetryBudget
from adacompute.models.openai import Upstream

RETRY_SHARE = 0.2
"""Retries as a share of all calls of a worker."""


class Upstreams:
    """All upstreams of a gateway, by their names; its own has the name None."""

    def __init__(self, config: Config, account: Account, stack: AsyncExitStack) -> None:
        self._config = config
        self._account = account
        self._stack = stack
        self._retry_budget = RetryBudget(RETRY_SHARE)
        self._relays: dict[str | None, Relay] = {}
        urls = [config.upstream(name).base_url for name in (None, *config.upstreams)]
        parts = [urlsplit(url) for url in urls]
        hosts = [part.hostname or part.netloc for part in parts]
        self._hidden = (*urls, *(part.netloc for part in parts), *hosts)

    async def open(self) -> None:
        """Open the relay of each upstream."""
        config = self._config
        for name in (None, *config.upstreams):
            upstream = config.upstream(name)
            relay = Relay(
                upstream.base_url,
                api_key=upstream.upstream_api_key,
                forward_key=config.forward_key and name is None,
                timeouts=config.timeouts,
            )
            self._relays[name] = await self._stack.enter_async_context(relay)

    def relay(self, name: str | None = None) -> Relay:
        """Return the relay of an upstream."""
        return self._relays[name]

    async def open_client(self, virtual: str, given: SampledModel) -> Upstream:
        """Return a client of a model for the samples of a virtual model."""
        config, upstream = self._config, self._config.upstream(given.upstream)
        return await self._stack.enter_async_context(
            Upstream(
                upstream.base_url,
                given.model,
                capabilities=given.capabilities,
                api_key=upstream.upstream_api_key,
                limits=EndpointLimits(
                    timeouts=config.timeouts,
                    retries=config.retries,
                    max_connections=config.max_concurrency,
                ),
                on_event=self._account.event_counter(virtual),
                retry_budget=self._retry_budget,
            )
        )

    def redact(self, data: bytes) -> bytes:
        """Replace the keys of all upstreams in bytes that are shown to a client."""
        for relay in self._relays.values():
            data = relay.redact(data)
        return data

    def hide(self, message: str) -> str:
        """Remove the addresses of all upstreams from a message for a client."""
        for address in self._hidden:
            message = message.replace(address, "the upstream")
        return message
