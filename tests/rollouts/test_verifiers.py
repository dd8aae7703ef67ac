"""Every hand-made pair gets the right verdict, or stands here as one that does not; nothing hangs, nothing raises."""

import json
import logging
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from gmc_core.rollouts.tasks import Prompt, make_task
from gmc_core.rollouts.verification import Verified, VerifierFault, VerifierPool
from gmc_core.rollouts.verifiers import (
    answers_agree,
    find_answer,
    last_boxed,
    math_verdict,
    number_verdict,
    parse_number,
)
from gmc_core.rollouts.verifiers.costs import refusal
from gmc_core.rollouts.verifiers.numbers import numbers_in

# One JSON object a line: verifier, reference, response, `right` (the true verdict), note. `ours` is there only where
# our verdict is another one, `library` only where that of math-verify alone is; `costly`: it alone is not asked.
PAIRS = [
    json.loads(line)
    for line in Path(__file__).with_name("answer_pairs.jsonl").read_text(encoding="utf-8").split("\n")
    if line
]
VERDICTS = {"math": math_verdict, "number": number_verdict}
MATH = [pair for pair in PAIRS if pair["verifier"] == "math"]


@pytest.fixture
def math_verify():
    return pytest.importorskip("math_verify", reason="math-verify is not installed: pip install -e '.[math]'")


def test_there_are_enough_pairs_and_no_pair_twice():
    assert len(PAIRS) >= 60
    assert len({(pair["verifier"], pair["reference"], pair["response"]) for pair in PAIRS}) == len(PAIRS)
    for verifier in VERDICTS:
        rights = [pair["right"] for pair in PAIRS if pair["verifier"] == verifier]
        assert min(rights.count(True), rights.count(False)) >= 10
    assert len([pair for pair in PAIRS if "ours" in pair]) <= 4, "a verifier that is often wrong is not one"


@pytest.mark.parametrize(
    "pair", [pair for pair in PAIRS if pair["verifier"] == "number"], ids=lambda pair: pair["note"]
)
def test_numbers(pair):
    assert number_verdict(pair["reference"], pair["response"]) is pair.get("ours", pair["right"])


@pytest.mark.parametrize("pair", MATH, ids=lambda pair: pair["note"])
def test_mathematics(pair, math_verify):
    assert math_verdict(pair["reference"], pair["response"]) is pair.get("ours", pair["right"])


def test_math_verify_alone_is_wrong_where_the_pairs_say_so(math_verify):
    """Reasons for what stands around it; when a new version mends one, its `library` entry goes."""
    logging.getLogger("math_verify.parser").setLevel(logging.ERROR)
    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)
    for pair in MATH:
        if pair.get("costly"):
            continue
        gold = math_verify.parse(rf"\boxed{{{pair['reference']}}}", parsing_timeout=None)
        given = math_verify.parse(pair["response"], parsing_timeout=None)
        verdict = bool(math_verify.verify(gold, given, timeout_seconds=None))
        assert verdict is pair.get("library", pair["right"]), pair


def test_the_order_of_reference_and_answer_matters(math_verify):
    """math-verify unwraps an assignment by what the reference is; ours passes the reference first."""
    assert answers_agree("x=5", "5")
    gold, given = (math_verify.parse(text, parsing_timeout=None) for text in ("$1<x<2$", "$(1,2)$"))
    assert math_verify.verify(gold, given, timeout_seconds=None) is True
    assert math_verify.verify(given, gold, timeout_seconds=None) is False


@pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS)
def test_no_garbage_raises(verdict, math_verify):
    pieces = [
        *r"0123456789.,-+*/^_{}()[]$%#=<>\!&| ",
        "\\frac",
        "\\boxed{",
        "\\sqrt",
        "\\text{",
        "}",
        "####",
        "\\",
        "answer is",
    ]
    pieces += [
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\infty",
        "\x00",
        "\ud800",
        "é",
        "²",
        "٣",
        "\n",
        "</think>",
        "e",
        "x",
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        places = torch.randint(0, len(pieces), (30,), generator=generator).tolist()
        text = "".join(pieces[place] for place in places)
        for response in (text, f"\\boxed{{{text}}}", f"#### {text}"):
            assert verdict("7", response) in (True, False)


def test_long_responses_take_no_time_worth_mentioning():
    """Quadratic scans would take minutes here; the limit of the suite would notice."""
    for filler in (
        "{" * 100_000,
        "\\boxed{" * 20_000,
        "1," * 100_000,
        "answer is " * 20_000,
        "9^" * 50_000,
        "(" * 100_000,
    ):
        assert number_verdict("7", filler) is False
        assert math_verdict("7", f"\\boxed{{{filler}}}") is False
        assert math_verdict("7", f"answer: {filler}") is False


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("9^9^9^9", True),
        ("9**9**9", True),
        ("9^{9^{9^9}}", True),
        (r"9^{9\cdot 9^{9}}", True),
        ("9^{999*999}", True),
        ("(9^{999})^{999}", True),
        (r"9^\frac{9^9}{1}", True),
        ("((9!)!)!", True),
        ("9!!", True),
        ("(9^9)!", True),
        ("100000!", True),
        (r"\binom{100000}{5}", True),
        ("(x+1)^{3000}", True),
        ("(x+1)^{90}(y+1)^{90}", True),
        (r"\frac{(x+y+z+w)^{60}}{(x-y)^{60}}", True),
        (r"\sum_{k=1}^{n} k", True),
        ("2^{99999}", True),
        ("{" * 30 + "1" + "}" * 30, True),
        ("2^{2024}", False),
        (r"2^{10}\cdot 3^5 \cdot 7^2", False),
        ("2^{3}+3^{2}", False),
        ("(2^3)^2", False),
        ("e^{x^2}", False),
        ("x^{2^n}", False),
        ("(n+1)!", False),
        ("20!", False),
        (r"\frac{2^{3}+3^2}{5!}", False),
        (r"(1+x)^{10}(1-x)^{20}", False),
        ("(x-a)^3(x-b)^3(x-c)^3", False),
        ("x^{2024}+1", False),
        ("1-2^{-10}", False),
    ],
)
def test_what_is_refused_before_symbolic_work(answer, refused):
    assert (refusal("1", answer) is not None) is refused


def test_a_sum_is_let_through_where_the_reference_has_one():
    assert refusal(r"\sum_{k=1}^{n} k^2", r"\sum_{j=1}^{n} j^2") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1,234.5", Fraction(-2469, 2)),
        (r"3\frac12", Fraction(7, 2)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        ("7/2", Fraction(7, 2)),
        (r"6.67 \times 10^{-11}", Fraction(667, 10**13)),
        ("1.6e-19", Fraction(16, 10**20)),
        (r"\$18.00", Fraction(18)),
        (r"5 \text{ cm}", Fraction(5)),
        ("033", Fraction(33)),
        ("1 000 000", Fraction(10**6)),
        ("1,0000", None),
        ("1,2", None),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("1e9999", None),
        ("x", None),
        ("9" * 300, None),
        ("", None),
    ],
)
def test_parse_number(text, value):
    number = parse_number(text)
    assert (None if number is None else number.value) == value


def test_numbers_in_prose():
    assert numbers_in("Of $1,250.50 he keeps 3/4, then 5-3 and -2; .5 m2, room B12, 1,2") == [
        Fraction(2501, 2),
        Fraction(3, 4),
        5,
        3,
        -2,
        Fraction(1, 2),
    ]


def test_where_an_answer_is_found():
    assert last_boxed(r"\boxed{\frac{1}{2}} and \fbox{\{1, 2\}}") == r"\{1, 2\}"
    assert last_boxed(r"\boxed{1} \boxed{2") is None
    assert last_boxed("boxed{1}") is None
    kinds = {
        response: find_answer(response)
        for response in (r"\boxed{1}", "<answer>1</answer>", "#### 1", "The answer is: 1.")
    }
    assert [answer.kind for answer in kinds.values()] == ["box", "tag", "hash", "phrase"]
    assert {answer.text for answer in kinds.values()} == {"1"}
    assert find_answer("<answer>1") is None
    assert find_answer("1") is None


def test_what_passes_the_filter_and_hangs_is_stopped_by_the_pool(math_verify):
    task, prompt = make_task("math_500"), Prompt("?", "1")
    hanging = r"\frac{\sin^{20}(x)+\cos^{20}(x)}{\tan^{9}(x+y)+\sin(x+y)}"  # minutes of simplification
    assert refusal("1", hanging) is None
    pool = VerifierPool(task, processes=1, limit_seconds=20.0)
    try:  # in order: the first one imports sympy, which a busy machine takes its time for
        pool.submit(0, prompt, [r"\boxed{\cos(0)}", r"\boxed{2}", "9^9^9^9"], [True, True, True])
        verdict = pool.results.get()
        assert isinstance(verdict, Verified), verdict
        assert verdict.rewards == (1.0, 0.0, 0.0)
        pool.limit_seconds = 1.0
        pool.submit(1, prompt, [rf"\boxed{{{hanging}}}"], [True])
        verdict = pool.results.get()
        assert isinstance(verdict, VerifierFault) and verdict.kind == "hung"
    finally:
        pool.close()
