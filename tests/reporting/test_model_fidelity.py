"""Estimates of the snapshot comparison: intervals, what is relative to what, the planner's check; made-up rows."""

import math

import numpy as np
import pytest

from gmc_core.experiments.grids import get_experiment
from gmc_core.reporting import model_fidelity as report
from gmc_core.reporting.figures import model_fidelity as figure
from gmc_core.theory.planner import predicted_excess
from tests.reporting.made_up_tables import made_up_snapshots

EXPERIMENT = get_experiment("model_fidelity")


@pytest.fixture(scope="module")
def rows():
    return made_up_snapshots(EXPERIMENT, EXPERIMENT.configs[0])


@pytest.fixture(scope="module")
def tables(rows):
    return report.as_tables(rows)


def test_intervals_hold_the_scatter_of_prompts_as_if_shared_and_that_of_runs():
    generator = np.random.default_rng(0)
    value, low, high = report.estimate(np.array([1.0, 3.0]), np.array([0.3, 0.5]), generator)
    assert value == 2.0
    assert (high - value, value - low) == pytest.approx((1.96 * 0.4, 1.96 * 0.4), rel=1e-3)
    runs = np.random.default_rng(1).normal(5.0, 2.0, 40)
    value, low, high = report.estimate(runs, np.full(40, 1e-3), generator)
    assert value == pytest.approx(runs.mean()) and high - low == pytest.approx(2 * 1.96 * 2.0 / 40**0.5, rel=0.3)
    value, low, high = report.estimate(runs, np.full(40, 10.0), generator)
    assert high - low == pytest.approx(2 * 1.96 * 10.0, rel=1e-3)
    ratio = report.ratio_estimate(runs * 2, runs, np.full(40, 4.0), generator)
    assert ratio[0] == pytest.approx(runs.mean() / 2) and ratio[1] < ratio[0] < ratio[2]
    assert all(math.isnan(end) for end in report.ratio_estimate(runs, runs, np.zeros(40), generator))


def test_tables_hold_what_the_rows_hold(rows, tables):
    drift = report.drift_table(tables)
    assert drift.index.tolist() == [0, 1, 4, 16, 64]
    own = next(row for row in rows if row["kind"] == "drift" and row["delay"] == 16)
    assert drift.loc[16, "kl_forward"] == pytest.approx(own["kl_forward"])
    assert drift.loc[16, "kl_forward_low"] == pytest.approx(
        own["kl_forward"] - 1.96 * own["kl_forward_error"], rel=1e-3
    )
    assert drift.loc[16, "half_variance"] == pytest.approx(own["log_ratio_variance"] / 2)
    gradient = report.gradient_table(tables)
    own = next(
        r for r in rows if r["kind"] == "gradient" and (r["delay"], r["group_size"], r["rule"]) == (64, 8, "gmc")
    )
    found = gradient.loc[(64, 8, "gmc")]
    assert found["bias"] == pytest.approx(own["bias_squared"] / own["fresh_norm_squared"])
    assert found["lost"] == pytest.approx(1 - own["signal"]) and found["paired_lost"] == pytest.approx(
        own["paired_lost"]
    )
    assert report.length_table(tables).loc[(64, 14), "log_ratio_variance"] > 0


def test_an_excess_is_not_negative_and_predictions_are_the_planners(tables):
    law = report.law_table(tables, samples=500)
    assert (law[[f"{name}_low" for name in report.EXCESSES]] >= 0).all().all()
    kl = report.drift_table(tables).loc[64, "kl_forward"]
    assert law.loc[(64, 8, 0.2), "from_kl"] == predicted_excess(float(kl), 8, 0.2, samples=500).value
    assert (law.loc[0, "from_variance"] == 0).all()
    ratios = report.prediction_errors(law)
    assert len(ratios) == (law["excess_group"] >= report.NOTICED).sum() > 0
    place = ratios.index[0]
    assert ratios.loc[place] == law.loc[place, "from_kl"] / law.loc[place, "excess_group"]


def test_the_planner_is_checked_at_every_delay_and_group_size(tables):
    check = report.plan_check(tables, 0.05)
    assert len(check) == 4 * 5 and check["right"].equals(check["planned"] == check["kept"])
    assert (check["kept"] == (check["measured"] <= 0.05)).all() and check["kept"].any() and not check["kept"].all()
    fit = report.fitted_drift(tables)
    assert fit.delay_power == pytest.approx(1.5, abs=0.1) and check.loc[(4, 8), "kl"] == pytest.approx(fit.at(4))


def test_models_in_one_figure_share_their_axes(tables):
    other = report.as_tables([row for row in tables.probes.to_dict("records") if row["delay"] != 64])
    with pytest.raises(ValueError, match="the experiments a, b differ in delay; they cannot share a figure"):
        figure.figure_data({"a": tables, "b": other})
