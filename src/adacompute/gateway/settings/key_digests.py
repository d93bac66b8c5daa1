"""Key digests: whether what the configuration has for a key is the SHA-256 of one.

A value that is none is refused with what is wrong with it, and is not shown: it may be the key. It
compares no keys.
"""

from __future__ import annotations

import re

from adacompute.core.errors import ConfigError
from adacompute.gateway.requests.clients import check_digest

N_DIGITS = 64
_DIGEST = re.compile(rf"[0-9a-f]{{{N_DIGITS}}}")
_PREFIX = re.compile(r"\{?sha-?(\d+)\}?[:=$-]?(?=[0-9a-f])")
_OTHER_KINDS = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}
_MAX_WRONG = 4
"""A text with more characters that are no hexadecimal digits does not look like a digest."""


def check_key(name: str, digest: str) -> None:
    """Raise ConfigError if a value is not the digest of a key that is hard to guess."""
    digest = digest.lower()
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"the key of {name!r} must be its SHA-256 in {N_DIGITS} hexadecimal digits, as `printf "
            f"%s KEY | sha256sum` prints it, and {_find_fault(digest)}"
        )
    if len(set(digest)) == 1:
        raise ConfigError(
            f"the key of {name!r} is {digest[0]!r} repeated, which is the digest of no key: set "
            "it to what `printf %s KEY | sha256sum` prints"
        )
    check_digest(name, digest)


def _find_fault(digest: str) -> str:
    """Say why a text is no digest, without showing it."""
    if (prefix := _PREFIX.match(digest)) is not None:
        return f"it begins with {prefix.group()!r}: leave that out"
    if digest != digest.strip() or re.match(r"[0-9a-f]+\s", digest):
        return "it has spaces, or what sha256sum prints after the digits: leave that out"
    wrong = [index for index, one in enumerate(digest) if one not in "0123456789abcdef"]
    if digest and not wrong:
        kind = (
            f", as a digest by {_OTHER_KINDS[len(digest)]}" if len(digest) in _OTHER_KINDS else ""
        )
        return f"it has {len(digest)} digits{kind}"
    if len(digest) == N_DIGITS and len(wrong) <= _MAX_WRONG:
        return f"character {wrong[0] + 1} is {digest[wrong[0]]!r}"
    return "it is no digest: is it the key itself?"
