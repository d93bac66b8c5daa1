"""Model settings: what the configuration says about one virtual model, or about one upstream.

The text below each setting is its meaning in the reference. It loads no policy and opens no
connection.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.gateway.requests.access import is_loopback
from adacompute.gateway.requests.answer_field import check_pointer
from adacompute.gateway.settings.settings import as_table, check_positive
from adacompute.models.formats.openai_format import check_url

FLAG, REFUSE = "flag", "refuse"
UNSURE = (FLAG, REFUSE)
"""What to do with answers that are not sure."""

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_MODEL_LIMITS = (
    "max_rounds",
    "deadline_s",
    "max_budget",
    "max_samples",
    "max_output_tokens",
)


@dataclass(frozen=True)
class ModelConfig:
    """A virtual model: its policy, its budget and its grader."""

    bundle: str
    """Directory of the policy's bundle, or ``example``. A relative path starts at the file."""
    budget: float
    """Mean cost per request, in the unit of the bundle."""
    model: str | None = None
    """The upstream's name of the model, if it is not the bundle's."""
    upstream: str | None = None
    """Name of the upstream in ``upstreams`` that serves this model. Default: the gateway's."""
    arm_upstreams: Mapping[str, str] = field(default_factory=dict)
    """Names of the upstreams of arms, by the arm, where they differ from the model's."""
    bundle_digest: str | None = None
    """Digest of the bundle, as ``fit`` prints it (SHA-256). Another bundle is not served."""
    grader: str | None = None
    """Grader to use instead of the bundle's. One that runs a command must be given here."""
    max_rounds: int | None = None
    """Rounds of samples per request. It must be what the price was calibrated with."""
    deadline_s: float | None = None
    """Start no round after this many seconds; cancel the rest when a sample has arrived."""
    unsure: str = FLAG
    """What an answer gets whose precision is not guaranteed: ``flag`` says so in a header,
    ``refuse`` answers 422 in its place and needs a bundle that was fitted with
    ``--min-precision``."""
    today_share: float = 0.0
    """Share of requests that are answered as today: by as many equal votes as ``fit --today`` was
    given, in one round. Lower it step by step; ``spend`` shows what the others save."""
    accept_verdict: bool = False
    """Serve a policy whose verdict is loss, no gain or inconclusive."""
    pacing: bool = True
    """Hold the mean cost of requests at the budget by moving the price."""
    max_budget: float | None = None
    """Largest budget that a request may set for itself (403). Default: ``budget``."""
    max_samples: int | None = None
    """Samples that one request for this model may draw."""
    max_output_tokens: int | None = None
    """Tokens that one completion may have, instead of the gateway's limit."""
    token_prices: str | None = None
    """File with the token prices of this model, instead of the gateway's."""
    scorer: str | None = None
    """URL that scores texts: all samples if the policy uses scores, else those of a request without
    a parsed answer. If it fails, the first sample is returned."""
    answer_field: str | None = None
    """JSON pointer to the member that is graded, such as ``/answer``, of answers to requests for
    JSON. Without it, such requests are forwarded."""

    def __post_init__(self) -> None:
        check_positive(self.budget, "budget")
        if self.bundle_digest is not None and not _DIGEST.fullmatch(self.bundle_digest):
            raise ConfigError(
                f"bundle_digest must be 64 hexadecimal digits, not {self.bundle_digest!r}: copy "
                "what 'adacompute fit' printed"
            )
        if self.unsure not in UNSURE:
            raise ConfigError(f"unsure must be {' or '.join(UNSURE)}, not {self.unsure!r}")
        if self.answer_field is not None:
            check_pointer(self.answer_field, "answer_field")
        for name in _MODEL_LIMITS:
            if (value := getattr(self, name)) is not None:
                check_positive(value, name)
        if not 0 <= self.today_share <= 1:
            raise ConfigError(f"today_share must be a share from 0 to 1, not {self.today_share}")

    def check_upstreams(self, model: str, known: Collection[str]) -> None:
        """Raise ConfigError if an upstream is named that there is not."""
        of_arms = as_table(self.arm_upstreams, f"models.{model}.arm_upstreams")
        for name in (self.upstream, *of_arms.values()):
            if name is not None and name not in known:
                raise ConfigError(
                    f"models.{model} names the upstream {name!r}: add a table "
                    f"[serve.upstreams.{name}]"
                )


OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")


@dataclass(frozen=True)
class UpstreamConfig:
    """An upstream beside that of the gateway, for some models or arms."""

    base_url: str
    """Address of the upstream, with its ``/v1``."""
    upstream_api_key: str | None = field(default=None, repr=False)
    """Key that is sent to this upstream, and to no other. It never gets the client's key."""

    def __post_init__(self) -> None:
        check_url(self.base_url)
        key = self.upstream_api_key
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(
                "upstream_api_key contains characters that no header can carry: see whether it has "
                "a line break or a space"
            )

    @property
    def is_openai(self) -> bool:
        """Whether the address is that of OpenAI or of its models at Azure."""
        return (urlsplit(self.base_url).hostname or "").endswith(OPENAI_HOSTS)

    def check_port(self, port: int) -> None:
        """Raise ConfigError if the address is that of the gateway itself."""
        upstream = urlsplit(self.base_url)
        if upstream.port == port and is_loopback(upstream.hostname or ""):
            raise ConfigError(
                f"base_url {self.base_url} is the address of this gateway itself: give the address "
                "of the upstream, or another port"
            )
