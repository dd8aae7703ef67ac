"""The rule of C8 on made-up tables: who is tuned, who is stable, and every verdict."""

import json

import numpy as np
import pandas as pd
import pytest

from gmc_core.reporting import claims_records as records
from gmc_core.reporting.run_records import tables_hash
from gmc_core.reporting.verdicts import CONDITIONS, CONFIRMED, CONTRADICTED, NEEDS_GPU, NOT_VISIBLE

RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
BEST = {"gmc": 0.90, "tic_truncate": 0.80, "snis": 0.80, "uncorrected": 0.70}


def tables(
    final=None, *, best_rate=None, seeds=range(10, 16), delays=(0, 64), fallen=(), model="data/tiny_qwen3", spread=0.02
):
    """(fresh, tuning): tuning seeds 0, 1 on every rate; fresh seeds at each method's best rate and the next larger one.

    `final`: accuracy of each method at its best step size; what a method loses grows with the distance to it.
    """
    noise = np.random.default_rng(0)
    rows = {"fresh": [], "tuning": []}
    for name, accuracy in (final or BEST).items():
        best = (best_rate or {}).get(name, 0.2)
        runs = [("tuning", seed, rate) for seed in (0, 1) for rate in RATES]
        runs += [("fresh", seed, rate) for seed in seeds for rate in sorted({best, min(2 * best, 0.8)})]
        for delay in delays:
            for kind, seed, rate in runs:
                value = accuracy - 0.1 * abs(np.log2(rate / best)) + spread * noise.uniform(-0.5, 0.5)
                row = {"run_id": f"{name}-{delay}-{seed}-{rate}", "estimator": name, "delay": delay, "seed": seed}
                row |= {"learning_rate": rate, "model": model, "initial_accuracy": 0.17, "area_under_curve": value}
                value = 0.1 * value if name in fallen and delay else value
                row |= {"final_accuracy": value, "best_accuracy": max(value, 0.3) if name in fallen else value}
                rows[kind].append(row)
    return tuple(pd.DataFrame(rows[kind], columns=rows["tuning"][0]) for kind in ("fresh", "tuning"))


def write(root, name, runs, tuning=None):
    if tuning is not None:
        write(root, f"{name}_tuning", tuning)
    folder = root / name
    folder.mkdir(parents=True)
    runs.to_csv(folder / "runs.csv", index=False)
    for part in ("metrics", "evaluations"):
        pd.DataFrame({"run_id": runs["run_id"], "update": 1}).to_parquet(folder / f"{part}.parquet")
    (folder / "provenance.json").write_text(json.dumps({"tables": tables_hash(folder)}))


def test_each_method_counts_at_its_own_step_size_and_on_fresh_seeds():
    results = records.tuned_results(*tables(best_rate={"gmc": 0.4, "snis": 0.8}), 64)
    assert {name: (result.step_size, result.edge) for name, result in results.items()} == {
        "gmc": (0.4, False), "tic_truncate": (0.2, False), "snis": (0.8, True), "uncorrected": (0.2, False)
    }  # fmt: skip
    assert list(results["gmc"].accuracy.index) == list(range(10, 16))
    assert abs(results["gmc"].accuracy.mean() - 0.9) < 0.02


def test_the_step_size_comes_from_the_tuning_tables_alone():
    fresh, tuning = tables()
    fresh.loc[fresh["learning_rate"] == 0.4, "final_accuracy"] = 1.0
    assert {result.step_size for result in records.tuned_results(fresh, tuning, 64).values()} == {0.2}
    for delay in (16, 64):  # the rule is that of step_sizes.py: with its neighbours in delay
        assert records.tuned_results(*tables(delays=(0, 16, 64)), delay)["gmc"].step_size == 0.2


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, CONFIRMED, "snis +0.1"),
        ({"final": BEST | {"snis": 0.95}}, CONTRADICTED, "snis -0.0"),
        ({"fallen": ("gmc",)}, CONTRADICTED, "100% collapsed"),
        ({"fallen": ("snis",), "final": BEST | {"snis": 0.95}}, CONFIRMED, "not stable: snis"),
        ({"final": BEST | {"snis": 0.897}, "spread": 0.05}, CONDITIONS, "snis"),  # best, separated from some
        ({"final": dict.fromkeys(BEST, 0.9)}, NOT_VISIBLE, "snis"),
        ({"best_rate": {"snis": 0.8}}, CONDITIONS, "end of its grid: snis"),
        ({"fallen": ("tic_truncate", "snis", "uncorrected")}, CONDITIONS, "no baseline is stable"),
        ({"fallen": tuple(BEST)}, NOT_VISIBLE, "no baseline is stable"),
    ],
)
def test_every_verdict_of_a_tuned_table(changes, verdict, words):
    found = records.judge_comparison(*tables(**changes), "made up")
    assert (found.verdict, words in found.evidence) == (verdict, True), found


def test_the_least_favourable_of_the_two_largest_delays_counts():
    fresh, tuning = tables(delays=(0, 16, 64, 128))
    assert records.judge_comparison(fresh, tuning, "made up").verdict == CONFIRMED
    for delay, verdict in ((16, CONFIRMED), (64, CONTRADICTED), (128, CONTRADICTED)):
        better = (fresh["estimator"] == "snis") & (fresh["delay"] == delay)
        found = records.judge_comparison(
            fresh.assign(final_accuracy=fresh["final_accuracy"].mask(better, 0.99)), tuning, "made up"
        )
        assert found.verdict == verdict and "delay 64" in found.evidence and "delay 128" in found.evidence, delay


def without(runs, **wrong):
    hit = pd.Series(True, runs.index)
    for name, values in wrong.items():
        hit &= runs[name].isin(values)
    return runs[~hit]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fresh, tuning: (without(fresh, estimator=["gmc"]), tuning), "needs gmc and another"),
        (lambda fresh, tuning: (fresh[fresh["estimator"] == "gmc"], tuning), "needs gmc and another"),
        (lambda fresh, tuning: (fresh[fresh["delay"] == 0], tuning), "positive delay"),
        (lambda fresh, tuning: (fresh, without(tuning, estimator=["snis"], learning_rate=RATES[:2])), "snis has 3"),
        (lambda fresh, tuning: (fresh, without(tuning, estimator=["snis"])), "snis has 0 tuned step sizes"),
        (lambda fresh, tuning: (fresh, without(tuning, seed=[1], learning_rate=[0.05])), "no whole grid"),
        (lambda fresh, tuning: (without(fresh, estimator=["snis"], seed=range(13)), tuning), "snis has 3 fresh seeds"),
        (lambda fresh, tuning: (without(fresh, learning_rate=[0.2]), tuning), "no fresh run at the chosen step size"),
        (lambda fresh, tuning: (pd.concat([fresh, tuning]), tuning), "among the tuning seeds"),
        (lambda fresh, tuning: (pd.concat([fresh, fresh]), tuning), "gmc has several runs"),
    ],
)
def test_what_makes_an_experiment_untuned(change, words):
    with pytest.raises(records.NotTuned, match=words):
        records.judge_comparison(*change(*tables()), "made up")


def test_a_run_that_never_leaves_zero_has_collapsed():
    """The column of the tables compares with the best after training began, which such a run does not have."""
    runs = pd.DataFrame(
        {"final_accuracy": [0.0, 0.3, 0.5], "best_accuracy": [0.0, 0.7, 0.7], "initial_accuracy": [0.17] * 3}
    )
    assert records.collapsed(runs).tolist() == [True, True, False]


def test_small_model_main_decides_and_is_capped(tmp_path):
    assert records.judge_small_qwen3(tmp_path).verdict == NOT_VISIBLE
    write(tmp_path, "main", *tables())
    found = records.judge_small_qwen3(tmp_path)
    assert found.verdict == CONDITIONS and found.evidence.startswith("on a small model only; `main`, delay 64")
    assert records.judge_checkpoints(tmp_path).verdict == NEEDS_GPU


def test_small_model_losing_is_contradicted_and_an_untuned_main_decides_nothing(tmp_path):
    write(tmp_path / "a", "main", *tables(BEST | {"snis": 0.99}))
    assert records.judge_small_qwen3(tmp_path / "a").verdict == CONTRADICTED
    for folder, changes, words in (
        ("b", {"seeds": (10, 11)}, "gmc has 2 fresh seeds"),
        ("c", {}, "there are no complete tables"),
    ):
        fresh, tuning = tables(BEST | {"snis": 0.99}, **changes)
        write(tmp_path / folder, "main", fresh, tuning if folder == "b" else None)
        found = records.judge_small_qwen3(tmp_path / folder)
        assert found.verdict == NOT_VISIBLE and f"`main` is not tuned: {words}" in found.evidence


def test_untuned_runs_are_described_and_never_a_verdict(tmp_path):
    runs = tables()[1].query("learning_rate == 0.2")  # GMC ahead of all by far, at one step size
    write(tmp_path, "first_staleness", runs)
    found = records.judge_small_qwen3(tmp_path)
    assert found.verdict == NOT_VISIBLE
    assert "delay 64, n = 2 seeds" in found.evidence and "above GMC with every seed: none" in found.evidence
    at_delay = runs[runs["delay"] == 64].pivot(index="seed", columns="estimator", values="final_accuracy")
    gap = at_delay["gmc"] - at_delay["snis"]
    assert f"snis {gap.mean():+.3f} [{gap.min():+.3f}, {gap.max():+.3f}]" in found.evidence

    losing = runs.assign(final_accuracy=np.where(runs["estimator"] == "gmc", 0.5, runs["final_accuracy"]))
    evidence = records.describe_untuned(losing, "x")
    assert "above GMC with every seed: tic_truncate, snis, uncorrected" in evidence


def test_checkpoints_the_least_favourable_table_counts(tmp_path):
    model = "Qwen/Qwen3-0.6B"
    write(tmp_path, "one", *tables(model=model))
    assert records.judge_checkpoints(tmp_path).verdict == CONFIRMED
    write(tmp_path, "two", *tables(BEST | {"snis": 0.99}, model=model))
    found = records.judge_checkpoints(tmp_path)
    assert found.verdict == CONTRADICTED and "`two`, Qwen/Qwen3-0.6B" in found.evidence
    write(tmp_path, "three", tables(model=model)[1])
    assert records.judge_checkpoints(tmp_path).verdict == CONTRADICTED


def test_untuned_checkpoint_runs_are_not_visible(tmp_path):
    write(tmp_path, "one", tables(model="Qwen/Qwen3-0.6B")[1])
    found = records.judge_checkpoints(tmp_path)
    assert found.verdict == NOT_VISIBLE and "is not tuned" in found.evidence


def test_paired_difference_uses_common_seeds_only():
    first, second = pd.Series({1: 0.5, 2: 0.7, 3: 0.9}), pd.Series({2: 0.5, 3: 0.8, 4: 0.0})
    mean, low, high, n = records.paired(first, second)
    assert (round(mean, 6), n) == (0.15, 2) and low < 0.15 < high
