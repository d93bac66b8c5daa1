r"""Numeric grader: answers that are one number.

The number is in the last ``\boxed{}`` or announcement ("the answer is", "####") that has one, else
after the last equals sign, else it is the last number in the text. It is exact: a finite decimal or
a fraction, so that 12.50, 25/2 and 12.5 are one answer. Currency and per cent signs are dropped:
50 % is 50.

Units and expressions are not interpreted: 3 feet is 3, and 2^10 is 10. A number of more than 400
characters, or beyond 10^±400, is unparsed.
"""

from __future__ import annotations

import re
from fractions import Fraction

from adacompute.graders.completion import (
    MAX_NUMBER_CHARS,
    NUMBER,
    find_announced,
    find_boxed,
    last_match,
)

_MAX_EXPONENT = 400
_SCALE = 10**MAX_NUMBER_CHARS

_FRAC = re.compile(
    r"(?P<before>[0-9])?\\[dtc]?frac\s*\{\s*(?P<over>-?[0-9]+)\s*\}\s*\{\s*(?P<under>[0-9]+)\s*\}"
)
_SPACING = re.compile(r"\\[,!;:]|(?<=[0-9])\{,\}(?=[0-9])")
_EQUALS = re.compile(r"=[\s*_$\\({\[]*(?=[-+\u2212.0-9€£])")


class NumericGrader:
    """Extracts one number and compares it exactly."""

    name: str = "numeric"

    def extract(self, text: str) -> str | None:
        """Return the final number in canonical form; None if there is none.

        >>> NumericGrader().extract("He pays 3 * 4 = $12.50 in all.")
        '12.5'
        """
        plain = _plain(text)
        claims = sorted(find_boxed(plain) + find_announced(plain), reverse=True)
        for claim in claims:
            match = _after_equals(claim.text) or NUMBER.search(claim.text)
            if match:
                return _canonicalise(match)
        match = _after_equals(plain) or last_match(NUMBER, plain)
        return _canonicalise(match) if match else None

    def equal(self, left: str, right: str) -> bool:
        """Whether two canonical numbers are the same: each number has one canonical form."""
        return left == right


def _plain(text: str) -> str:
    """Write LaTeX numbers as plain ones."""
    if "\\" not in text and "{,}" not in text:
        return text
    text = text.replace("\\$", "$").replace("\\%", "%")
    text = _SPACING.sub(lambda match: "," if match[0] == "{,}" else "", text)
    return _FRAC.sub(_with_slash, text)


def _with_slash(match: re.Match[str]) -> str:
    """Write a LaTeX fraction with a slash, separated from an integer before it."""
    before = f"{match['before']} " if match["before"] else ""
    return f"{before}{match['over']}/{match['under']}"


def _after_equals(text: str) -> re.Match[str] | None:
    """Return the number after the last equals sign that has one."""
    sign = last_match(_EQUALS, text)
    return NUMBER.match(text, sign.end()) if sign else None


def _canonicalise(match: re.Match[str]) -> str | None:
    """Return the canonical form of a number; None if it is too long or too large."""
    if len(match[0]) > MAX_NUMBER_CHARS:
        return None
    exponent = int((match["exponent"] or match["power"] or "0").replace("\u2212", "-"))
    if abs(exponent) > _MAX_EXPONENT:
        return None
    digits = match["digits"].replace(",", "")
    if digits.isdecimal() and not exponent and not match["divisor"]:
        return _signed(match, str(int(digits)))  # most numbers; fractions are slow
    value = Fraction(digits) * Fraction(10) ** exponent
    if match["divisor"]:
        divisor = int(match["divisor"])
        if divisor == 0:
            return None
        value = value / divisor + int(match["whole"] or "0")
    return _signed(match, _format(value))


def _signed(match: re.Match[str], canonical: str) -> str | None:
    """Return a canonical number with the sign of its match; None if it is too long."""
    if match["sign"] in ("-", "\u2212") and canonical != "0":
        canonical = f"-{canonical}"
    return canonical if len(canonical) <= MAX_NUMBER_CHARS else None


def _format(value: Fraction) -> str:
    """Write a non-negative number as an integer, a finite decimal or a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    if _SCALE % value.denominator:
        return f"{value.numerator}/{value.denominator}"
    scaled = value.numerator * (_SCALE // value.denominator)
    digits = str(scaled).rjust(MAX_NUMBER_CHARS + 1, "0")
    return f"{digits[:-MAX_NUMBER_CHARS]}.{digits[-MAX_NUMBER_CHARS:].rstrip('0')}"
