"""Figures of an evaluation file: denominators, pass@k, paired tests against enumeration, tables."""

import json
from dataclasses import replace
from itertools import product
from math import comb

import numpy as np
import pytest

from gmc_core.reporting.evaluation import compare, holm, macro_average, read_result, sign_flip_p_value
from gmc_core.reporting.evaluation_tables import main, results_table


def write(
    path, correct, *, method="gmc", task="aime_2024", samples=4, received=None, problems=None, faults=0, temperature=1.0
):
    """An evaluation file with so many right answers per problem."""
    received = received or [samples] * len(correct)
    settings = {
        "method": method,
        "task": task,
        "samples": samples,
        "temperature": temperature,
        "max_new_tokens": 100,
        "problems": problems or len(correct),
    }
    lines = [{"settings": settings}]
    for problem, (right, came) in enumerate(zip(correct, received, strict=True)):
        lines.append(
            {
                "problem": problem,
                "id": f"{task}-{problem}",
                "rewards": [1.0] * right + [0.0] * (came - right),
                "finished": [True] * right + [False] * (came - right),
                "lengths": [10] * right + [100] * (came - right),
                "faults": faults,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rng():
    return np.random.default_rng(0)


def test_missing_responses_are_failures_in_every_figure(tmp_path):
    result = read_result(write(tmp_path / "a", [4, 2, 0, 1, 0], received=[4, 2, 4, 1, 0]))
    assert result.missing == 9
    assert result.scores().tolist() == [1.0, 0.5, 0.0, 0.25, 0.0]
    assert result.scores(2).tolist() == pytest.approx(
        [1, 1 - comb(2, 2) / comb(4, 2), 0, 1 - comb(3, 2) / comb(4, 2), 0]
    )
    assert result.interval(rng()).estimate == pytest.approx(7 / 20)
    assert result.truncated_fraction == pytest.approx(4 / 11)
    assert result.mean_length == pytest.approx((7 * 10 + 4 * 100) / 11)
    with pytest.raises(ValueError, match="k=5"):
        result.scores(5)


def test_an_interrupted_file_is_refused_or_a_lower_bound(tmp_path):
    path = write(tmp_path / "a", [4, 4], problems=4)
    with pytest.raises(ValueError, match="2 of 4 problems"):
        read_result(path)
    assert read_result(path, interrupted=True).scores().mean() == 0.5
    with pytest.raises(ValueError, match="is no evaluation"):
        (tmp_path / "b").write_text("1\n")
        read_result(tmp_path / "b")


def test_the_interval_covers_as_often_as_it_says_and_shrinks_with_problems(tmp_path):
    """Problems differ in difficulty; what is estimated is the mean over a population of them, here 0.5."""
    result, generator = read_result(write(tmp_path / "a", [2] * 30)), np.random.default_rng(1)
    intervals = [
        replace(result, correct_P=generator.binomial(4, generator.beta(0.5, 0.5, 30))).interval(generator)
        for _ in range(200)
    ]
    covered = np.mean([interval.low <= 0.5 <= interval.high for interval in intervals])
    assert 0.90 <= covered <= 0.98  # 95 % nominal, a little less for 30 problems; standard error 0.015
    many = read_result(write(tmp_path / "b", generator.binomial(4, generator.beta(0.5, 0.5, 480)).tolist())).interval(
        rng()
    )
    mean_width = np.mean([interval.high - interval.low for interval in intervals])
    assert mean_width / (many.high - many.low) == pytest.approx(4, rel=0.15)
    assert read_result(write(tmp_path / "c", [1, 2])).interval(rng()).few


def test_sign_flips_are_the_enumeration_and_mcnemar():
    gaps = np.array([0.5, -0.25, 0.75, 0.0, 0.25, 0.5])
    kept = gaps[gaps != 0]
    sums = [abs(sum(sign * gap for sign, gap in zip(signs, kept, strict=True))) for signs in product((1, -1), repeat=5)]
    expected = np.mean([value >= abs(kept.sum()) - 1e-9 for value in sums])
    assert sign_flip_p_value(gaps, rng()) == pytest.approx(expected)
    binary = np.array([1] * 9 + [-1] * 2 + [0] * 30)
    mcnemar = 2 * sum(comb(11, i) for i in range(3)) / 2**11
    assert sign_flip_p_value(binary, rng()) == pytest.approx(mcnemar)
    assert sign_flip_p_value(np.zeros(5), rng()) == 1.0
    wide = np.concatenate([np.full(22, 1.0), np.full(8, -1.0)])  # beyond enumeration
    exact = 2 * sum(comb(30, i) for i in range(9)) / 2**30
    assert sign_flip_p_value(wide, rng(), resamples=200_000) == pytest.approx(exact, rel=0.15)
    with pytest.raises(ValueError, match="finite"):
        sign_flip_p_value([np.nan], rng())


def test_comparison_is_paired(tmp_path):
    hard_and_easy = [0, 4] * 20
    first = read_result(write(tmp_path / "a", [min(4, c + 1) for c in hard_and_easy], method="gmc"))
    second = read_result(write(tmp_path / "b", hard_and_easy, method="tic"))
    found = compare(first, second, rng())
    assert found.difference.estimate == pytest.approx(0.125) and found.difference.excludes_zero
    assert (found.better, found.worse) == (20, 0) and found.p_value < 0.001
    assert not (first.interval(rng()).low > second.interval(rng()).high)  # unpaired, it would not show
    other = read_result(write(tmp_path / "c", hard_and_easy, task="amc23"))
    with pytest.raises(ValueError, match="0 in common, of 40 and 40"):
        compare(first, other, rng())


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_macro_average_counts_benchmarks_once(tmp_path):
    results = [
        read_result(write(tmp_path / "a", [4] * 10, task="aime_2024")),
        read_result(write(tmp_path / "b", [0, 4] * 100, task="math_500")),
    ]
    average = macro_average(results, rng())
    assert average.estimate == pytest.approx(0.75) and average.low < 0.75 < average.high


def files(tmp_path):
    return [
        write(tmp_path / "a", [4] * 15 + [2] * 15, method="gmc"),
        write(tmp_path / "b", [0] * 15 + [2] * 15, method="tic_mask", faults=1),
        write(tmp_path / "c", [4, 0] * 10, method="gmc", task="amc23", received=[4, 0] * 10),
        write(tmp_path / "d", [4, 0] * 10, method="tic_mask", task="amc23"),
    ]


def test_the_table_is_that_of_a_paper(tmp_path):
    table = results_table([read_result(file) for file in files(tmp_path)], rng(), reference="gmc")
    header, _, gmc, tic, _, *notes = table.split("\n")
    assert header == ("| method | aime_2024, avg@4 (30 problems) | amc23, avg@4 (20 problems) | average |")
    assert gmc.startswith("| gmc | **75.0** [") and "| **50.0** [" in gmc and "| **62.5** [" in gmc
    assert tic.startswith("| tic_mask | 25.0† [") and "| **50.0** [" in tic  # a tie: both are best
    assert "† differs from gmc" in notes[1]
    assert "gmc on amc23: 40 of 80 responses missing." in notes
    assert any("tic_mask on aime_2024: 30 verifications failed, 75% cut off at 100 tokens." in note for note in notes)
    assert "Missing responses and failed verifications are failures." in notes


def test_other_tables(tmp_path, capsys):
    results = [read_result(file) for file in files(tmp_path)]
    plain = results_table(results[:3], rng(), 4, plain=True).split("\n")
    assert plain[0].startswith("method    aime_2024, pass@4 (30 problems)")
    assert plain[2].startswith("gmc       *100.0 [100.0, 100.0]") and "tic_mask" in plain[3] and " -" in plain[3]
    with pytest.raises(ValueError, match="two results of method 'gmc' on 'aime_2024'"):
        results_table([results[0], results[0]], rng())
    with pytest.raises(ValueError, match="none of the methods gmc, tic_mask"):
        results_table(results, rng(), reference="ppo")
    greedy = read_result(write(tmp_path / "g", [1, 0, 1, 1, 0], samples=1, temperature=0))
    assert "aime_2024, greedy (5 problems)" in results_table([greedy], rng())
    assert main([str(file) for file in files(tmp_path)] + ["--reference", "gmc"]) == 0
    assert "| tic_mask | 25.0† [" in capsys.readouterr().out
    assert main([str(tmp_path / "none")]) == 2
