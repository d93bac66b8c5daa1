r"""Numeric grader: answers that are one number.

The number is read from the last ``\boxed{}`` or announcement ("the answer is", "####") that has
one, else after the last equals sign, else it is the last number in the text. It is kept exactly,
as a decimal where that ends and as a fraction where it does not, so that 12.50, 25/2 and 12.5 are
one answer. A sign of currency or per cent is dropped: 50 % is 50.

It knows nothing of units and of expressions: 3 feet is 3, and 2^10 is 10. A number of more than
400 characters cannot be read, and neither can one beyond 10^±400.
"""

from __future__ import annotations

import re
from fractions import Fraction

from adacompute.graders.completion import MAX_NUMBER, NUMBER, boxes, last_match, statements

_MAX_EXPONENT = 400
_SCALE = 10**MAX_NUMBER

_FRAC = re.compile(
    r"(?P<before>[0-9])?\\[dtc]?frac\s*\{\s*(?P<over>-?[0-9]+)\s*\}\s*\{\s*(?P<under>[0-9]+)\s*\}"
)
_SPACING = re.compile(r"\\[,!;:]|(?<=[0-9])\{,\}(?=[0-9])")
_EQUALS = re.compile(r"=[\s*_$\\({\[]*(?=[-+\u2212.0-9€£])")


class Numeric:
    """Reads one number and compares it exactly."""

    name: str = "numeric"

    def extract(self, text: str) -> str | None:
        """Read the final number, in canonical form.

        >>> Numeric().extract("He pays 3 * 4 = $12.50 in all.")
        '12.5'
        """
        plain = _plain(text)
        claims = sorted(boxes(plain) + statements(plain), reverse=True)
        for claim in claims:
            found = _after_equals(claim.text) or NUMBER.search(claim.text)
            if found:
                return _canonical(found)
        found = _after_equals(plain) or last_match(NUMBER, plain)
        return _canonical(found) if found else None

    def equal(self, left: str, right: str) -> bool:
        """Whether two canonical numbers are the same: each number has one canonical form."""
        return left == right


def _plain(text: str) -> str:
    """Write LaTeX numbers as plain ones."""
    if "\\" not in text and "{,}" not in text:
        return text
    text = text.replace("\\$", "$").replace("\\%", "%")
    text = _SPACING.sub(lambda found: "," if found[0] == "{,}" else "", text)
    return _FRAC.sub(_stroke, text)


def _stroke(found: re.Match[str]) -> str:
    """Write a fraction with a stroke, and keep it apart from the whole number before it."""
    before = f"{found['before']} " if found["before"] else ""
    return f"{before}{found['over']}/{found['under']}"


def _after_equals(text: str) -> re.Match[str] | None:
    """Return the number after the last equals sign that has one."""
    sign = last_match(_EQUALS, text)
    return NUMBER.match(text, sign.end()) if sign else None


def _canonical(found: re.Match[str]) -> str | None:
    """Spell a number in its one canonical form, or None if it is beyond reading."""
    if len(found[0]) > MAX_NUMBER:
        return None
    exponent = int((found["exponent"] or found["power"] or "0").replace("\u2212", "-"))
    if abs(exponent) > _MAX_EXPONENT:
        return None
    value = Fraction(found["digits"].replace(",", "")) * Fraction(10) ** exponent
    if found["divisor"]:
        divisor = int(found["divisor"])
        if divisor == 0:
            return None
        value = value / divisor + int(found["whole"] or "0")
    spelled = _spell(value)
    if found["sign"] in ("-", "\u2212") and value:
        spelled = f"-{spelled}"
    return spelled if len(spelled) <= MAX_NUMBER else None


def _spell(value: Fraction) -> str:
    """Write a number that is not negative as a whole number, a decimal that ends, or a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    if _SCALE % value.denominator:
        return f"{value.numerator}/{value.denominator}"
    digits = str(value.numerator * (_SCALE // value.denominator)).rjust(MAX_NUMBER + 1, "0")
    return f"{digits[:-MAX_NUMBER]}.{digits[-MAX_NUMBER:].rstrip('0')}"
