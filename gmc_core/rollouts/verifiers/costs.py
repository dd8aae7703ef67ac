"""What is refused before any symbolic work: answers whose evaluation could take for ever, found by looking at the text.

The limits are far above what reference answers need. A refused answer counts as wrong; one that is written exactly like
the reference never gets here. What still gets through and takes long needs a wall limit, that is a worker process.
"""

from __future__ import annotations

import re
from math import comb, prod

LONGEST_ANSWER = 512  # characters, or four times the reference if that is longer
DEEPEST_NESTING = 24
LARGEST_EXPONENT = 5_000  # of a number, products written in the exponent included
LARGEST_EXPANSION = 250  # terms of a power of a sum, multiplied out; four times that for a product of them
LARGEST_FACTORIAL = 500
LARGEST_CHOICE = 10_000

_COMMAND = re.compile(r"\\[a-zA-Z]+")
_INTEGER = re.compile(r"[0-9][0-9,]*")
_CHOICE = re.compile(r"\\[dt]?binom(?![a-zA-Z])\s*\{?\s*([0-9]+)")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![a-zA-Z])")
_OPEN, _CLOSE = "{([", "})]"


def refusal(reference: str, answer: str) -> str | None:
    """Why this answer is not looked at symbolically, or None if it is."""
    if len(answer) > max(LONGEST_ANSWER, 4 * len(reference)):
        return f"longer than {LONGEST_ANSWER} characters"
    if (reason := costly_arithmetic(answer)) is not None:
        return reason
    if any(_integer(match[1]) > LARGEST_CHOICE for match in _CHOICE.finditer(answer)):
        return f"a binomial coefficient above {LARGEST_CHOICE}"
    if _UNEVALUATED.search(answer) and not _UNEVALUATED.search(reference):
        return "a sum, product, integral or limit that is not carried out"
    return None


def costly_arithmetic(text: str) -> str | None:
    """Why working out the numbers in `text` (LaTeX or Python) could take for ever, or None."""
    text = text.replace("**", "^")
    if _nesting(text) > DEEPEST_NESTING:
        return f"nested deeper than {DEEPEST_NESTING}"
    return _large_power(text) or _large_factorial(text)


def _large_power(text: str) -> str | None:
    exponents, expanded = [], 1
    for place in (match.start() for match in re.finditer(r"\^", text)):
        exponent = _group_after(text, place + 1)
        if _has_letters(exponent):
            continue
        if "^" in exponent or "!" in exponent:
            return "a power whose exponent holds a power or a factorial"
        size = prod(max(1, _integer(match[0])) for match in _INTEGER.finditer(exponent))
        if size > LARGEST_EXPONENT:
            return f"an exponent above {LARGEST_EXPONENT}"
        base = _group_before(text, place)
        if "!" in base:
            return "a power of a factorial"
        terms = _expansion(base, size)
        expanded *= terms
        if terms > LARGEST_EXPANSION or expanded > 4 * LARGEST_EXPANSION:
            return f"powers of sums that have {expanded} terms"
        exponents.append((size, "^" in base))
    if any(of_power for _, of_power in exponents) and prod(size for size, _ in exponents) > LARGEST_EXPONENT:
        return f"powers of powers above {LARGEST_EXPONENT}"
    return None


def _expansion(base: str, exponent: int) -> int:
    """Terms of `base` to the power `exponent` multiplied out, as far as the letters in a bracketed sum tell."""
    variables = len(set(re.findall(r"[a-zA-Z]", _COMMAND.sub("", base))))
    is_sum = base[:1] in ("(", "[", "{") and re.search(r"[-+]", base[1:]) is not None
    return comb(exponent + variables, variables) if is_sum and variables else 1


def _large_factorial(text: str) -> str | None:
    for place in (match.start() for match in re.finditer("!", text)):
        argument = _group_before(text, place)
        if _has_letters(argument):
            continue
        if "!" in argument or "^" in argument:
            return "a factorial of a power or of a factorial"
        if prod(max(1, _integer(match[0])) for match in _INTEGER.finditer(argument)) > LARGEST_FACTORIAL:
            return f"a factorial above {LARGEST_FACTORIAL}"
    return None


def _group_after(text: str, start: int) -> str:
    """The operand that begins at `start`: a bracketed group, a command with its groups, or digits and letters.

    A `^` or `!` that follows it belongs to it: in `9^9^9` the first exponent is a power.
    """
    while text[start : start + 1] in ("-", "+", " "):
        start += 1
    if text[start : start + 1] == "\\":
        command = _COMMAND.match(text, start)
        end = command.end() if command else start + 1
        while text[end : end + 1] == "{":
            end = _closing(text, end) + 1
    elif text[start : start + 1] and text[start] in _OPEN:
        end = _closing(text, start) + 1
    else:
        end = start
        while end < len(text) and (text[end].isalnum() or text[end] in ".,"):
            end += 1
    following = text[end:].lstrip()[:1]
    return text[start:end] + (following if following in ("^", "!") else "")


def _group_before(text: str, end: int) -> str:
    """The operand that ends before `end`: a bracketed group, or digits and letters."""
    while end > 0 and text[end - 1] == " ":
        end -= 1
    start = end
    if start > 0 and text[start - 1] in _CLOSE:
        depth = 0
        while start > 0:
            start -= 1
            depth += (text[start] in _CLOSE) - (text[start] in _OPEN)
            if depth == 0:
                break
        return text[start:end]
    if start > 0 and text[start - 1] == "!":
        return text[max(0, start - 2) : end]
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] in ".,"):
        start -= 1
    return text[start:end]


def _closing(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPEN) - (text[place] in _CLOSE)
        if depth == 0:
            return place
    return len(text) - 1


def _has_letters(text: str) -> bool:
    return re.search(r"[a-zA-Z]", _COMMAND.sub("", text)) is not None


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        deepest = max(deepest, depth)
    return deepest


def _integer(digits: str) -> int:
    digits = digits.replace(",", "")
    return int(digits) if len(digits) <= 12 else 10**12
