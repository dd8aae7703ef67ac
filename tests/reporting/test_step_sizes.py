"""The rule that gives every method its step size, against scores counted by hand."""

import itertools

import pandas as pd
import pytest

from gmc_core.reporting.step_sizes import (
    choose_step_sizes,
    chosen_at_edge,
    common_step_size,
    smoothed,
    split_by_choice,
)

RATES = (0.05, 0.1, 0.2)


def tuning(scores, seeds=(100,), **columns):
    """Rows for {(estimator, delay): scores per step size}; a score may be a tuple with one entry per seed."""
    rows = []
    for (estimator, delay), values in scores.items():
        for rate, value in zip(RATES, values, strict=True):
            each = value if isinstance(value, tuple) else (value,) * len(seeds)
            for seed, score in zip(seeds, each, strict=True):
                rows.append((estimator, delay, rate, seed, score))
    names = ["estimator", "delay", "learning_rate", "seed", "area_under_curve"]
    return pd.DataFrame(rows, columns=names).assign(**columns)


def chosen(table, **options):
    return {(row.estimator, row.delay): row.step_size for row in choose_step_sizes(table, **options).itertuples()}


def test_scores_are_smoothed_over_both_neighbours():
    frame = pd.DataFrame([[0.0, 4.0, 8.0], [12.0, 0.0, 4.0]], index=[8, 16], columns=RATES)
    rows = [[4 / 3, 4.0, 20 / 3], [8.0, 4.0, 8 / 3]]  # along step sizes: (2a + b) / 3 at ends, (a + 2b + c) / 4 inside
    expected = [
        [(2 * a + b) / 3 for a, b in zip(*rows, strict=True)],
        [(a + 2 * b) / 3 for a, b in zip(*rows, strict=True)],
    ]
    pd.testing.assert_frame_equal(smoothed(frame), pd.DataFrame(expected, index=[8, 16], columns=RATES))


def test_delay_zero_has_no_neighbours_in_delay():
    frame = pd.DataFrame([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1], [0.3, 0.3, 0.3]], index=[0, 8, 16], columns=RATES)
    assert smoothed(frame).loc[0].tolist() == pytest.approx([0.9] * 3)
    assert smoothed(frame).loc[8].tolist() == pytest.approx([0.5 / 3] * 3)


def test_the_mean_over_seeds_counts():
    table = tuning({("gmc", 64): [(0.9, 0.1), (0.6, 0.6), (0.4, 0.5)]}, seeds=(1, 2))
    (row,) = choose_step_sizes(table).itertuples()
    assert (row.step_size, row.edge) == (0.1, False) and row.score == pytest.approx(0.6)
    assert row.smoothed == pytest.approx((0.5 + 2 * 0.6 + 0.45) / 4)


def test_the_edge_of_a_cliff_is_avoided_and_the_end_of_a_grid_marked():
    table = tuning({("cliff", 8): [0.7, 0.8, 0.0], ("rising", 8): [0.2, 0.5, 0.9]})
    result = choose_step_sizes(table).set_index("estimator")
    assert result.loc["cliff", "step_size"] == 0.05 and result.loc["rising", "step_size"] == 0.2
    assert result["edge"].tolist() == [True, True]
    table = pd.concat([table, tuning({("inside", 8): [0.1, 0.9, 0.1]})]).assign(options="{}")
    assert chosen_at_edge(table, ["inside", "cliff", "rising"], [0, 8]).tolist() == [[False] * 2, *[[False, True]] * 2]
    assert chosen_at_edge(table, [("cliff", "{}")], [8], ("estimator", "options")).tolist() == [[True]]


def test_a_neighbouring_delay_decides_between_equals_and_ties_go_to_the_smaller_step():
    alone = tuning({("gmc", 16): [0.5, 0.5, 0.5]})
    assert chosen(alone) == {("gmc", 16): 0.05}
    beside = tuning({("gmc", 16): [0.5, 0.5, 0.5], ("gmc", 32): [0.0, 0.3, 0.9]})
    assert chosen(beside)["gmc", 16] == 0.2


def test_a_method_may_be_named_by_several_columns():
    first, second = tuning({("mixture", 32): [0.9, 0.5, 0.1]}), tuning({("mixture", 32): [0.1, 0.5, 0.9]})
    table = pd.concat([first.assign(estimator_options="{}"), second.assign(estimator_options='{"alpha": 0.5}')])
    result = choose_step_sizes(table, by=("estimator", "estimator_options"))
    assert result[["estimator_options", "step_size"]].to_numpy().tolist() == [["{}", 0.05], ['{"alpha": 0.5}', 0.2]]


def test_a_grid_with_holes_is_refused():
    table = tuning({("gmc", 8): [0.1, 0.2, 0.3]}, seeds=(1, 2))
    with pytest.raises(ValueError, match=r"\['gmc'\] are no whole grid"):
        choose_step_sizes(table.iloc[:-1])


def test_the_common_step_size_is_best_on_average():
    scores = {("a", 8): [0.9, 0.6, 0.1], ("b", 8): [0.0, 0.5, 0.7], ("b", 16): [0.0, 0.6, 0.7]}
    table = tuning(scores)
    by_hand = {rate: 0.0 for rate in RATES}
    for name, delays in (("a", [8]), ("b", [8, 16])):
        frame = pd.DataFrame([scores[name, delay] for delay in delays], index=delays, columns=RATES)
        for rate, delay in itertools.product(RATES, delays):
            by_hand[rate] += smoothed(frame).loc[delay, rate] / len(delays)
    assert common_step_size(table) == max(by_hand, key=by_hand.get) == 0.1
    with pytest.raises(ValueError, match="same step sizes"):
        common_step_size(table[~((table["estimator"] == "a") & (table["learning_rate"] == 0.1))])


def fresh(*rows):
    return pd.DataFrame(rows, columns=["estimator", "delay", "learning_rate", "seed"], index=range(50, 50 + len(rows)))


def test_fresh_runs_are_split_at_the_choice():
    tuned = tuning({("gmc", 8): [0.9, 0.5, 0.1], ("uncorrected", 0): [0.1, 0.5, 0.9]})
    runs = fresh(("gmc", 8, 0.05, 1), ("gmc", 8, 0.1, 1), ("gmc", 0, 0.2, 1), ("gmc", 8, 0.05, 2))
    chosen, larger = split_by_choice(runs, tuned)
    assert chosen.index.tolist() == [50, 52, 53] and larger.index.tolist() == [51]
    with pytest.raises(ValueError, match="snis at delay 8 was not tuned"):
        split_by_choice(fresh(("snis", 8, 0.05, 1)), tuned)
    with pytest.raises(ValueError, match=r"gmc at delay 8 has no fresh run at the chosen step size 0\.05"):
        split_by_choice(fresh(("gmc", 8, 0.1, 1)), tuned)
