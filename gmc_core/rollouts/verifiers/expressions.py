"""Mathematical answers: exact text, choice letters and plain numbers here, everything else by math-verify.

math-verify (and sympy under it) is called without its own time-outs: they use SIGALRM, which fails outside the main
thread of a process and is easily swallowed. Its `verify` is not symmetric, the reference comes first.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache

from gmc_core.rollouts.verifiers.answers import find_answer, normalized
from gmc_core.rollouts.verifiers.costs import refusal
from gmc_core.rollouts.verifiers.numbers import numbers_agree, parse_number

_LETTER = re.compile(r"\(?\s*([A-J])\s*(?:\)|[.:)]\s.*|\)\s.*|[.:])?", flags=re.DOTALL)


def math_verdict(reference: str, response: str) -> bool:
    """Whether the answer of `response` (see `find_answer`) is `reference`. Never raises on a response.

    ImportError if the comparison needs math-verify and it is not installed.
    """
    answer = find_answer(response)
    return answer is not None and answers_agree(reference, answer.text)


def answers_agree(reference: str, answer: str) -> bool:
    """Whether two answers, already taken out of their texts, are the same mathematically.

    A single capital letter A to J as the reference is the letter of a choice. Order matters in tuples and not in lists
    and sets; an unevaluated sum or integral is no answer unless the reference has one.
    """
    gold, given = normalized(reference), normalized(answer)
    if not gold or not given:
        return False
    if _same_text(gold, given):
        return True
    if re.fullmatch(r"\(?[A-J]\)?", gold):
        letter = _LETTER.fullmatch(re.sub(r"\\text(?:bf|rm)?\s*\{([^{}]*)\}", r"\1", given).strip())
        return letter is not None and letter[1] == gold.strip("()")
    first, second = parse_number(gold), parse_number(given)
    if first is not None and second is not None and not (_has_unit(gold) and _has_unit(given)):
        return numbers_agree(first, second)
    if refusal(gold, given) is not None:
        return False
    return _same_expression(gold, given)


def _same_text(gold: str, given: str) -> bool:
    first, second = (re.sub(r"\s+", "", text) for text in (gold, given))
    words = re.fullmatch(r"[A-Za-z ,'-]{2,}", gold) is not None
    return first == second or (words and first.casefold() == second.casefold())


def _has_unit(answer: str) -> bool:
    return r"\text" in answer or r"\mathrm" in answer


def require_math_verify() -> None:
    """ImportError with the way out if math-verify is missing: to be asked before a run, not in its middle."""
    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this task compares mathematical expressions and needs math-verify: pip install -e '.[math]' "
            "(or pip install math-verify==0.9.0)"
        ) from error


def _same_expression(gold: str, given: str) -> bool:
    require_math_verify()
    from math_verify import verify

    try:
        return bool(
            verify(list(_parse_reference(gold)), _parse(given), allow_set_relation_comp=True, timeout_seconds=None)
        )
    except Exception:  # sympy and the parser raise almost anything, RecursionError included, on what a model may write
        return False


@lru_cache(maxsize=4096)
def _parse_reference(gold: str) -> tuple:
    return tuple(_parse(gold))


def _parse(answer: str) -> list:
    """What math-verify makes of an answer: sympy expressions, and its text."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    for name in ("math_verify.parser", "math_verify.grader"):  # they warn that their time-outs are off, which is meant
        logging.getLogger(name).setLevel(logging.ERROR)
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return parse(rf"\boxed{{{answer}}}", extraction_config=targets, parsing_timeout=None)
