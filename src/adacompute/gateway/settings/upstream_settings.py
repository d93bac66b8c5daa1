"""Upstream settings: where an upstream is, and the key that it gets.

The text below each setting is its meaning in the reference. It opens no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.gateway.connection.browser_checks import is_loopback
from adacompute.models.connection.addresses import check_addresses

OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")


@dataclass(frozen=True)
class UpstreamConfig:
    """An upstream beside that of the gateway, for some models or arms."""

    base_url: str | None = None
    """Address of the upstream, with its ``/v1``. This or ``base_urls`` is required."""
    base_urls: Sequence[str] = ()
    """Addresses of servers with the same models, instead of ``base_url``."""
    upstream_api_key: str | None = field(default=None, repr=False)
    """Key that is sent to this upstream, and to no other. It never gets the client's key."""

    def __post_init__(self) -> None:
        check_addresses(self.urls)
        key = self.upstream_api_key
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(
                "upstream_api_key contains characters that no header can carry: see whether it has "
                "a line break or a space"
            )

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses."""
        if (self.base_url is None) == (not self.base_urls):
            raise ConfigError(
                "give 'base_url', the address of the upstream, or 'base_urls', its addresses if "
                "there are several"
            )
        return tuple(self.base_urls) or (str(self.base_url),)

    @property
    def is_openai(self) -> bool:
        """Whether all addresses are those of OpenAI or of its models at Azure."""
        return all((urlsplit(url).hostname or "").endswith(OPENAI_HOSTS) for url in self.urls)

    def check_port(self, port: int) -> None:
        """Raise ConfigError if an address is that of the gateway itself."""
        for url in self.urls:
            upstream = urlsplit(url)
            if upstream.port == port and is_loopback(upstream.hostname or ""):
                raise ConfigError(
                    f"base_url {url} is the address of this gateway itself: give the address of "
                    "the upstream, or another port"
                )
