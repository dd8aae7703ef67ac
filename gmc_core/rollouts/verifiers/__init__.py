"""Verdicts on answers: plain functions of text, without signals, threads or time-outs of their own.

`find_answer` reads the answer out of a response (answers.py), `number_verdict` compares plain numbers (numbers.py),
`math_verdict` compares mathematical expressions (expressions.py) after a filter that refuses what would be too costly
(costs.py). None of them raises on what a model wrote. A wall limit, when one is wanted, comes from running them in
worker processes.
"""

from gmc_core.rollouts.verifiers.answers import find_answer, last_boxed
from gmc_core.rollouts.verifiers.expressions import answers_agree, math_verdict
from gmc_core.rollouts.verifiers.numbers import number_verdict, parse_number

__all__ = ["answers_agree", "find_answer", "last_boxed", "math_verdict", "number_verdict", "parse_number"]
