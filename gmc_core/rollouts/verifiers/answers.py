"""Where the answer stands in a response, and one way to write it.

A response may hold several candidates; exactly one counts, so that naming many answers cannot be right: the last
`\\boxed{}` if there is a box at all, else the last `<answer>` tag, else what follows the last `####`, else what follows
the last "answer is" or "answer:". What a thinking model wrote before `</think>` does not count. A box or tag that was
opened last and not closed is a truncated answer, which is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_FORMULA = re.compile(r"[*\s]*(?:\$+(?![0-9.,]+(?:\s|$))([^$]+)\$+|\\\((.+?)\\\))")
_PHRASE = re.compile(r"\banswer(?:\s+is)?\s*(?::|\bis\b)\s*:?", flags=re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """`text` as the model wrote it; `kind` says how it was found: "box", "tag", "hash", "phrase"."""

    text: str
    kind: str


def find_answer(response: str) -> Answer | None:
    """The one answer of a response, or None where there is none (or it was cut off)."""
    if "</think>" in response:
        response = response.rpartition("</think>")[2]
    elif "<think>" in response:
        return None  # still thinking when it ended
    if _BOX.search(response):
        boxed = last_boxed(response)
        return None if boxed is None else _answer(boxed, "box")
    if "<answer>" in response:
        inside, closed, _ = response.rpartition("<answer>")[2].partition("</answer>")
        return _answer(inside, "tag") if closed else None
    if "####" in response:
        return _answer(_first_line(response.rpartition("####")[2]), "hash")
    phrases = list(_PHRASE.finditer(response))
    return _answer(_sentence(response[phrases[-1].end() :]), "phrase") if phrases else None


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` (or `\\fbox{...}`, `\\boxed 7`) holds, braces balanced; None if it is not closed.

    Of nested boxes it is the innermost of the last ones: `\\boxed{x = \\boxed{5}}` gives `5`.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        word = re.match(r"[^\s$\\{}]+", text[start:])
        return word[0] if word else None
    depth, escaped = 0, False
    for place in range(start, len(text)):
        character = text[place]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : place]
    return None


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


def _sentence(text: str) -> str:
    """The first line up to the end of its sentence; of one that begins with mathematics between delimiters, that."""
    line = _first_line(text)
    if (formula := _FORMULA.match(line)) is not None:
        return formula[1] or formula[2]
    return re.split(r"(?<=\S)\.(?:\s|$)", line, maxsplit=1)[0]


def _answer(text: str, kind: str) -> Answer | None:
    return Answer(text.strip(), kind) if text.strip() else None


_SPACING = re.compile(r"(?<!\\)\\(?:[,;:!> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z])|thinspace(?![a-zA-Z]))|~")
_SILENT = re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![a-zA-Z])")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\$")
_DEGREES = re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])|°")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_MARKS = str.maketrans(
    {"−": "-", "–": "-", "﹣": "-", "％": "%", "，": ",", "×": r"\times ", "÷": "/", "∞": r"\infty "}
)


def normalized(answer: str) -> str:
    """The answer without what does not change it: mathematics delimiters, spacing, sizes, marks of emphasis, degrees.

    Currency signs go as well. `\\dfrac` becomes `\\frac`, `{,}` a comma, `\\%` a percent sign, and an answer that is
    nothing but `\\text{...}` becomes its words.
    """
    text = answer.translate(_MARKS).strip()
    text = text.replace(r"\$", "").replace(r"\%", "%").replace("{,}", ",")
    text = _DELIMITERS.sub("", text)
    text = _SPACING.sub("", _SILENT.sub("", text))
    text = _DEGREES.sub("", text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"^[*_`\"'\s]+|[*_`\"'\s]+$", "", text)
    text = re.sub(r"(?<!\.)\.$", "", text).strip()
    text = re.sub(r"^[*_`]+|[*_`]+$", "", text)
    while (whole := _TEXT.fullmatch(text)) is not None:
        text = whole[1].strip()
    return re.sub(r"\s+", " ", text)


def without_units(answer: str) -> str:
    """A normalised answer without words in `\\text{...}` and without currency signs."""
    return re.sub(r"[€£¥₹]", "", _TEXT.sub("", answer)).strip()
