"""Statistics over seeds: hand-computed cases, scipy beside, coverage on synthetic data, and what pairing is worth."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gmc_core.reporting.direct_labels import spread
from gmc_core.reporting.run_comparisons import by_seed, curves, falls_table, paired_table, summary_table
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import (
    Falls,
    bootstrap_interval,
    falls,
    interquartile_mean,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
    usable_range,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_bootstrap_is_scipys_percentile_bootstrap():
    values = rng(1).normal(size=8)
    found = bootstrap_interval(values, rng(2), resamples=2000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=2000, method="percentile", rng=rng(2)).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert found.estimate == pytest.approx(values.mean()) and found.n == 8


def test_the_generator_decides_the_interval():
    values = rng(1).normal(size=8)
    assert bootstrap_interval(values, rng(3)) == bootstrap_interval(values, rng(3))
    assert bootstrap_interval(values, rng(3)) != bootstrap_interval(values, rng(4))


@pytest.mark.parametrize(("n", "covered"), [(5, 0.84), (10, 0.90), (20, 0.93)])
def test_coverage_on_normal_data_is_what_the_module_says(n, covered):
    inside, generator = 0, rng()
    for row in rng(n).normal(size=(600, n)):
        found = bootstrap_interval(row, generator, resamples=500)
        inside += found.low < 0 < found.high
    assert inside / 600 == pytest.approx(covered, abs=0.035)


def test_few_seeds_get_no_interval_and_are_shown():
    found = bootstrap_interval([0.9, 0.95, 1.0], rng())
    assert np.isnan([found.low, found.high]).all() and found.few and not found.excludes_zero
    assert str(found) == "0.950 (n = 3 seeds: 0.900, 0.950, 1.000)"
    assert str(bootstrap_interval([0.25], rng())) == "0.250 (n = 1 seed: 0.250)"
    assert str(bootstrap_interval([0.5] * 5, rng())) == "0.500 [0.500, 0.500] (n = 5 seeds, 95 % interval)"


def test_pairing_removes_what_the_seeds_share():
    shared = rng(5).normal(scale=0.3, size=10)
    method = shared + 0.05 + rng(6).normal(scale=0.02, size=10)
    reference = shared + rng(7).normal(scale=0.02, size=10)
    paired = paired_difference(method, reference, rng())
    assert paired.excludes_zero and paired.low < 0.05 < paired.high
    apart = [bootstrap_interval(values, rng()) for values in (method, reference)]
    unpaired = np.hypot(*(interval.high - interval.low for interval in apart))
    assert paired.high - paired.low < unpaired / 5
    assert paired.estimate == pytest.approx(apart[0].estimate - apart[1].estimate)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 20])
def test_interquartile_mean_is_scipys_trimmed_mean(n):
    values = rng(n).normal(size=(3, n))
    np.testing.assert_allclose(interquartile_mean(values, axis=-1), stats.trim_mean(values, 0.25, axis=-1))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values.ravel(), 0.25))


def test_interquartile_mean_ignores_one_collapsed_run():
    assert interquartile_mean([0.0, 0.9, 0.9, 0.9, 0.9]) == pytest.approx(0.9)


def test_strata_are_resampled_apart():
    """Settings differ much, seeds within a setting not at all: the aggregate has no spread."""
    found = stratified_interval([[0.2] * 5, [0.8] * 5], rng(), statistic=np.mean)
    assert (found.estimate, found.low, found.high, found.n) == pytest.approx((0.5, 0.5, 0.5, 5))
    single = rng(1).normal(size=9)
    one, same = stratified_interval([single], rng(2), statistic=np.mean), bootstrap_interval(single, rng(2))
    assert (one.low, one.high) == (same.low, same.high)
    assert np.isnan(stratified_interval([[0.1] * 5, [0.2] * 3], rng()).low)


def test_performance_profile_counts_runs_above_a_threshold():
    profile, low, high = performance_profile([[0.1, 0.5, 0.5, 0.9, 0.9], [0.9] * 5], [0.0, 0.5, 0.9, 1.0], rng())
    np.testing.assert_allclose(profile, [1.0, 0.7, 0.0, 0.0])
    assert (low <= profile).all() and (profile <= high).all() and low[1] < 0.7 < high[1]
    np.testing.assert_allclose((low[0], high[0]), 1.0)
    assert np.isnan(performance_profile([[0.1, 0.2]], [0.15], rng())[1]).all()


def test_probability_of_improvement_is_mann_whitneys():
    first, second = rng(1).normal(0.5, size=7).round(1), rng(2).normal(size=6).round(1)
    found = probability_of_improvement([first], [second], rng())
    assert found.estimate == pytest.approx(stats.mannwhitneyu(first, second).statistic / 42)
    assert found.low < found.estimate < found.high
    sure = probability_of_improvement([[1.0] * 5, [0.0] * 5], [[0.0] * 5, [0.0] * 5], rng())
    assert (sure.estimate, sure.low, sure.high) == (0.75, 0.75, 0.75)


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ([0.17, 0.5, 0.9, 0.95], Falls(0, False)),
        ([0.17, 0.9, 0.1, 0.9], Falls(1, False)),
        ([0.17, 0.9, 0.1, 0.2, 0.9, 0.3, 0.5], Falls(2, False)),
        ([0.17, 0.9, 0.1, 0.0], Falls(0, True)),
        ([0.17, 0.9, 0.1, 0.9, 0.44], Falls(1, True)),
        ([0.17, 0.0, 0.0, 0.0], Falls(0, True)),  # never above its start
        ([0.17, 0.9, 0.45], Falls(0, False)),  # exactly half is not below half
    ],
)
def test_dips_and_collapse(accuracy, expected):
    assert falls(accuracy) == expected


def test_usable_range_has_no_gap():
    rates = [0.1, 0.2, 0.4, 0.8, 1.6]
    found = usable_range(rates, [0.96, 0.5, 0.97, 1.0, 0.2])
    assert (found.best, found.low, found.high, found.edge) == (0.8, 0.4, 0.8, False)
    assert found.factor == pytest.approx(2)
    assert usable_range(rates[::-1], [0.2, 0.3, 0.5, 0.9, 1.0]).edge


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([], rng()), "at least one value"),
        (lambda: bootstrap_interval([[1.0]], rng()), r"samples has shape \(1, 1\)"),
        (lambda: bootstrap_interval([1.0, np.nan], rng()), "not finite; leave missing runs out"),
        (lambda: bootstrap_interval([1.0] * 5, rng(), level=95.0), "level is 95.0; expected a number between 0 and 1"),
        (lambda: paired_difference([1.0], [1.0, 2.0], rng()), "1 samples and 2 reference values"),
        (lambda: stratified_interval([], rng()), "no setting given"),
        (lambda: performance_profile([[1.0]], 0.5, rng()), "1-D array of thresholds"),
        (lambda: probability_of_improvement([[1.0]], [[1.0]] * 2, rng()), "1 settings and 2 reference settings"),
        (lambda: falls([0.1], fraction=1.5), "fraction=1.5"),
        (lambda: usable_range([0.1, 0.1], [1, 2]), "several different positive step sizes"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def tables(collapsing="is", seeds=(0, 1, 2, 3, 4)):
    """gmc and two others at delays 0 and 8; `collapsing` falls to 0 at delay 8."""
    runs, evaluations = [], []
    for estimator in ("gmc", collapsing, "snis"):
        for delay in (0, 8):
            for seed in seeds:
                fallen = estimator == collapsing and delay == 8
                final = 0.0 if fallen else 0.9 + 0.01 * seed + 0.02 * (estimator == "snis")
                run_id = f"{estimator}-{delay}-{seed}"
                runs.append(
                    {"run_id": run_id, "estimator": estimator, "delay": delay, "seed": seed, "final_accuracy": final}
                )
                for update, accuracy in ((0, 0.17), (10, 0.5), (20, final)):
                    evaluations.append({"run_id": run_id, "update": update, "accuracy": accuracy})
    evaluations = pd.DataFrame(evaluations).astype({"run_id": "category"}).sample(frac=1, random_state=0)
    return Runs("demo", pd.DataFrame(runs), evaluations, evaluations, {})


def test_tables_by_seed_and_their_gaps():
    runs = tables().runs
    values = by_seed(runs, "final_accuracy", ["snis", "gmc"], [8, 0])
    assert values.shape == (2, 2, 5)
    np.testing.assert_allclose(values[1, 0], [0.90, 0.91, 0.92, 0.93, 0.94])
    missing = by_seed(runs[runs["run_id"] != "gmc-8-2"], "final_accuracy", ["gmc"], [8])
    assert np.isnan(missing[0, 0]).tolist() == [False, False, True, False, False]
    with pytest.raises(ValueError, match="2 runs share estimator, delay and seed"):
        by_seed(pd.concat([runs, runs.iloc[:1]]), "final_accuracy", ["gmc"], [0])


def test_paired_table_uses_common_seeds():
    runs = tables().runs
    table = paired_table(runs[runs["run_id"] != "gmc-8-2"], "final_accuracy", rng()).set_index(["estimator", "delay"])
    assert table.index.tolist() == [("is", 0), ("is", 8), ("snis", 0), ("snis", 8)]
    row = table.loc["snis", 8]
    assert row["n"] == 4 and row["difference"] == pytest.approx(0.02) and np.isnan(row["low"])
    row = table.loc["snis", 0]
    assert (row["low"], row["high"]) == pytest.approx((0.02, 0.02))  # unpaired it would be 0.014 wide at least
    with pytest.raises(ValueError, match="no run of the reference 'vespo'; estimators: gmc, is, snis"):
        paired_table(runs, "final_accuracy", rng(), reference="vespo")


def test_summary_counts_what_fell():
    found = tables()
    assert falls_table(found)["collapsed"].sum() == 5
    table = summary_table(found, rng(), metrics=["final_accuracy"]).set_index(["estimator", "delay"])
    assert table.loc[("is", 8), "collapsed"] == 5 and table["collapsed"].sum() == 5 and table["dips"].sum() == 0
    assert table.loc[("gmc", 0), "final_accuracy"].estimate == pytest.approx(0.92)


def test_curves_follow_the_updates_whatever_the_order_of_rows():
    found = tables()
    values = curves(found.evaluations, "accuracy", found.runs, ["is", "gmc"], 8)
    assert values.shape == (2, 5, 3)
    np.testing.assert_allclose(values[0], [[0.17, 0.5, 0.0]] * 5)
    np.testing.assert_allclose(values[1, :, 2], [0.90, 0.91, 0.92, 0.93, 0.94])
    last = (found.evaluations["run_id"] == "is-8-0") & (found.evaluations["update"] == 20)
    with pytest.raises(ValueError, match=r"\[2, 3\] rows of accuracy"):
        curves(found.evaluations[~last], "accuracy", found.runs, ["is"], 8)


def test_labels_are_spread_without_changing_their_order():
    placed = spread([0.96, 0.97, 0.98, 0.1], 0.05, 0.0, 1.0)
    np.testing.assert_allclose(np.sort(placed), placed[[3, 0, 1, 2]])
    assert placed[3] == pytest.approx(0.1) and np.diff(placed[:3]) == pytest.approx([0.05, 0.05])
    assert placed.max() <= 1.0
    np.testing.assert_allclose(spread([0.5] * 3, 0.9, 0.0, 1.0), [0.0, 0.5, 1.0])  # they cannot all have their gap
    assert np.diff(np.sort(spread(rng(0).random(12), 0.08, 0.0, 1.0))).min() > 0.079
