"""Plain numbers, compared exactly: integers, decimals, fractions, thousands separators, powers of ten, per cent.

This is the whole verifier of GSM8K, whose answers are numbers, and the first thing that `math_verdict` tries: it is
exact, takes microseconds and does not fall for rounding of very small numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gmc_core.rollouts.verifiers.answers import find_answer, normalized, without_units

TOLERANCE = Fraction(1, 10**6)  # relative; for a decimal that stands for something that is not one, 0.333333 for 1/3
LONGEST = 200  # characters of a number; beyond it lie typed-out digits that no reference has
LARGEST_EXPONENT = 400

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
_SCALE = r"(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?[0-9]+)\s*\}|([-+]?[0-9]+))|[eE]([-+]?[0-9]+))"
_DECIMAL = re.compile(rf"({_PLAIN}){_SCALE}?")
_POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*([-+]?[0-9]+)\s*\}|([-+]?[0-9]+))")
_FRACTION = re.compile(
    r"(?:([0-9]+)\s*)?\\frac\s*(?:\{\s*([-+]?[0-9,.]+)\s*\}|([0-9]))\s*(?:\{\s*([-+]?[0-9,.]+)\s*\}|([0-9]))"
)
_SLASH = re.compile(rf"({_PLAIN})\s*/\s*([-+]?{_PLAIN})")
# A number inside prose: not the tail of another number or of a word, and a sign only where it cannot be a subtraction.
_IN_PROSE = re.compile(
    r"(?<![\w.,])(?P<sign>-?)[$€£¥₹]?(?P<inner>-?)"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?P<rest>\.[0-9]+)?(?!,?[0-9])(?:\s*/\s*(?P<below>[0-9]+)(?!,?[0-9]|\.[0-9]))?"
    r"|(?<![\w.,])(?P<point_sign>-?)[$€£¥₹]?(?P<point>\.[0-9]+)(?![0-9])"
)


@dataclass(frozen=True)
class Number:
    """`value`; `percent` if a per-cent sign followed; `decimal` if it was written with a decimal point."""

    value: Fraction
    percent: bool = False
    decimal: bool = False


def parse_number(answer: str) -> Number | None:
    """The number that the whole of `answer` is, or None: `-1,234.5`, `\\frac{3}{4}`, `3\\frac12`, `7/2`,
    `6.67 \\times 10^{-11}`, `1.6e-19`, `50\\%`, `\\$18`, `5 \\text{ cm}`.
    """
    if len(answer) > LONGEST:
        return None
    text = without_units(normalized(answer)).removesuffix(".").strip()
    percent = text.endswith("%")
    text = text.rstrip("% ")
    sign = 1
    if text[:1] in ("+", "-"):
        sign = -1 if text[0] == "-" else 1
        text = text[1:].strip()
    value = _value(text)
    if value is None:
        return None
    return Number(sign * value, percent, decimal="." in text or "e" in text.lower().replace(r"\frac", ""))


def _value(text: str) -> Fraction | None:
    if match := _POWER_OF_TEN.fullmatch(text):
        return _scaled(Fraction(1), match[1] or match[2])
    if match := _DECIMAL.fullmatch(text):
        return _scaled(_digits(match[1]), match[2] or match[3] or match[4] or "0")
    if match := _SLASH.fullmatch(text):
        return _quotient(match[1], match[2])
    if match := _FRACTION.fullmatch(text):
        quotient = _quotient(match[2] or match[3], match[4] or match[5])
        return None if quotient is None else Fraction(match[1] or 0) + quotient
    return None


def _digits(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").removesuffix("."))


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    power = int(exponent)
    return value * Fraction(10) ** power if abs(power) <= LARGEST_EXPONENT else None


def _quotient(above: str, below: str) -> Fraction | None:
    try:
        return _digits(above) / _digits(below)
    except (ValueError, ZeroDivisionError):
        return None


def numbers_agree(reference: Number, answer: Number) -> bool:
    """Equal; a decimal may differ by `TOLERANCE` from what it rounds. 50 %, 50 and 0.5 agree where one is per cent."""
    if _close(reference.value, answer.value, reference.decimal or answer.decimal):
        return True
    if reference.percent == answer.percent:
        return False
    first = reference.value / 100 if reference.percent else reference.value
    second = answer.value / 100 if answer.percent else answer.value
    return _close(first, second, reference.decimal or answer.decimal)


def _close(first: Fraction, second: Fraction, decimal: bool) -> bool:
    return first == second or (decimal and abs(first - second) <= TOLERANCE * max(abs(first), abs(second)))


def numbers_in(text: str) -> list[Fraction]:
    """Every number in prose, in order; `1,000` is one, `5-3` are two positive ones, `3/4` is a fraction."""
    found = []
    for match in _IN_PROSE.finditer(text[-100_000:]):
        if match["point"]:
            value = Fraction("0" + match["point"]) * (-1 if match["point_sign"] else 1)
        elif len(match[0]) > LONGEST:
            continue
        else:
            value = Fraction(match["digits"].replace(",", "") + (match["rest"] or ""))
            value *= -1 if match["sign"] or match["inner"] else 1
            if match["below"]:
                if not int(match["below"]):
                    continue
                value /= int(match["below"])
        found.append(value)
    return found


def final_number(response: str) -> Fraction | None:
    """The number that a response ends on.

    In a box, in tags or after `####` exactly one number must stand (behind the last `=`, if there is one): two are no
    answer. After "answer is" it is the first number of that line (again behind its last `=`). Without any of these it
    is the last number of the response.
    """
    answer = find_answer(response)
    if answer is None:
        if "\\boxed" in response or "<think>" in response or "<answer>" in response:
            return None
        numbers = numbers_in(response)
        return numbers[-1] if numbers else None
    text = normalized(answer.text.rpartition("=")[2])
    whole = parse_number(text)
    if whole is not None:
        return whole.value
    numbers = numbers_in(without_units(text))
    if answer.kind == "phrase":
        return numbers[0] if numbers else None
    return numbers[0] if len(numbers) == 1 else None


def number_verdict(reference: str, response: str) -> bool:
    """Whether `response` ends on the number `reference`. False when either is no number; never raises on a response."""
    gold = parse_number(reference)
    given = final_number(response)
    return gold is not None and given is not None and given == gold.value
