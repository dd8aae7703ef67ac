"""The studies as data: what they hold, what they cost, and that choices come from the tuning tables alone."""

import json

import pandas as pd
import pytest

from gmc_core import ESTIMATORS, paths
from gmc_core.experiments import __main__ as command
from gmc_core.experiments.cost import experiment_seconds, run_seconds
from gmc_core.experiments.experiment import chosen_step_sizes, placeholder
from gmc_core.experiments.grids import EXPERIMENTS, get_experiment
from gmc_core.experiments.protocols import write_protocols
from gmc_core.experiments.studies.common import CORE, FIVE, FRESH_SEEDS, REST, STEP_SIZES, TUNING_SEEDS, next_larger
from gmc_core.experiments.studies.main import DELAYS, MAIN_STEP_SIZES
from gmc_core.experiments.studies.mixture import SEEDS as MIXTURE_SEEDS

STUDIES = (
    "mean_and_shape",
    "fidelity",
    "optimizer",
    "group_size",
    "threshold",
    "length",
    "starting_accuracy",
    "smaller_steps",
    "half_steps",
    "advantage",
)


def planned(name):
    return get_experiment(name).configs_at(placeholder)


def write_tuning(root, experiment, area):
    """Tuning tables as if the runs had reached `area(config)`."""
    folder = root / experiment.name
    folder.mkdir(parents=True)
    rows = []
    for config in experiment.configs:
        row = config.to_dict() | {"run_id": config.run_id, "area_under_curve": area(config)}
        rows.append(row | {name: json.dumps(row[name]) for name in ("estimator_options", "task_options")})
    pd.DataFrame(rows).to_csv(folder / "runs.csv", index=False)
    for name in ("metrics", "evaluations"):
        pd.DataFrame({"run_id": [], "update": []}).to_parquet(folder / f"{name}.parquet")
    from gmc_core.reporting.run_records import tables_hash

    (folder / "provenance.json").write_text(json.dumps({"tables": tables_hash(folder)}))


def test_the_menu_is_covered_once():
    assert set(CORE) | set(REST) == set(ESTIMATORS) and not set(CORE) & set(REST)
    assert set(FIVE) < set(CORE) and [name for name in FIVE if ESTIMATORS[name].level == "token"] == ["ppo_clip"]


def test_step_sizes_are_spaced_by_the_root_of_two():
    assert STEP_SIZES == (0.05, 0.0707, 0.1, 0.1414, 0.2, 0.2828)
    assert MAIN_STEP_SIZES == (0.025, 0.0354, 0.05, 0.0707, 0.1, 0.1414, 0.2)
    for grid in (STEP_SIZES, MAIN_STEP_SIZES):
        assert [next_larger(rate) for rate in grid[:-1]] == list(grid[1:])


def test_the_main_grid_is_what_its_protocol_says():
    tuning, main = planned("main_tuning"), planned("main")
    assert len(tuning) == (10 * 5 + 8 * 2 + 2 * 2) * 7 and len(main) == (10 * 5 * 2 + 8 * 2 + 18 + 2) * 5
    for delay in (0, *DELAYS):
        names = {config.estimator for config in main if config.delay == delay}
        assert names == (set(ESTIMATORS) if delay in (0, 64) else set(CORE))
    seeds = {config.seed for config in main} | set(MIXTURE_SEEDS)
    assert seeds.isdisjoint({config.seed for config in tuning} | set(TUNING_SEEDS))
    assert {config.seed for config in main} == set(FRESH_SEEDS) and len(FRESH_SEEDS) >= 5
    assert all(config.updates >= 200 for config in (*tuning, *main))


def test_costs_stay_in_their_budgets():
    seconds = {name: experiment_seconds(get_experiment(name)) for name in (*STUDIES, "mixture")}
    known = {config.run_id for name in ("main", "starting_accuracy", "length") for config in planned(name)}
    for name in ("smaller_steps", "half_steps"):  # further step sizes beside runs of other studies
        seconds[name] = sum(run_seconds(config) for config in planned(name) if config.run_id not in known)
    for name in seconds:
        assert seconds[name] < 3600 * 1.05, name
    assert experiment_seconds(get_experiment("main_tuning")) + experiment_seconds(get_experiment("main")) < 3600 * 8.5


def test_no_run_appears_twice_and_studies_share_their_reference_runs():
    at_tuned = {config.run_id for config in planned("main")}
    for name in EXPERIMENTS:
        configs = planned(name)
        assert len({config.run_id for config in configs}) == len(configs) > 0
    for name in (*STUDIES, "mixture"):
        shared = {config.run_id for config in planned(name)} & at_tuned
        assert shared if name not in ("mixture", "smaller_steps") else not shared, name
    smaller = {config.run_id for config in planned("smaller_steps")}
    assert len(smaller & {config.run_id for config in planned("starting_accuracy")}) == 5 * 2 * 5
    assert len(smaller & {config.run_id for config in planned("length")}) == 5 * 2 * 2


def test_fresh_runs_use_what_the_tuning_tables_choose(tmp_path, monkeypatch):
    """Every method gets the step size its tuning runs liked best, and the next larger one."""
    liked = {name: MAIN_STEP_SIZES[index % 7] for index, name in enumerate(ESTIMATORS)}

    def area(config):
        own, best = (MAIN_STEP_SIZES.index(rate) for rate in (config.learning_rate, liked[config.estimator]))
        return 1.0 - abs(own - best) / 7

    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    main = get_experiment("main")
    with pytest.raises(FileNotFoundError, match="make experiments ONLY=main_tuning"):
        main.runs(chosen_step_sizes(main.tuning))
    write_tuning(tmp_path, get_experiment("main_tuning"), area)
    step_sizes = chosen_step_sizes("main_tuning")
    seen = {}
    for config in main.configs_at(step_sizes):
        seen.setdefault((config.estimator, config.delay), set()).add(config.learning_rate)
    for (name, delay), rates in seen.items():
        stand_in = name if delay or name == "gepo" else "uncorrected"
        expected = {liked[stand_in]}
        if delay or name in ("uncorrected", "gepo"):
            expected.add(next_larger(liked[stand_in]))
        assert rates == expected, (name, delay)
    with pytest.raises(KeyError, match=r"did not tune vespo \{\} at delay 8"):
        step_sizes(planned("main")[0].replace(estimator="vespo", delay=8))


def test_each_mixture_gets_its_own_step_size(tmp_path, monkeypatch):
    best = {"{}": 0.1, '{"alpha": 0.1}': 0.2, '{"alpha": 0.5}': 0.0707}

    def area(config):
        target = 0.1414 if config.estimator == "gmc" else best[json.dumps(config.estimator_options)]
        return 1.0 - abs(STEP_SIZES.index(config.learning_rate) - STEP_SIZES.index(target)) / 6

    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    write_tuning(tmp_path, get_experiment("mixture_tuning"), area)
    configs = get_experiment("mixture").configs_at(chosen_step_sizes("mixture_tuning"))
    assert len(configs) == 4 * 2 * 10
    for config in configs:
        own = 0.1414 if config.estimator == "gmc" else best[json.dumps(config.estimator_options)]
        assert config.learning_rate == own


def test_what_the_studies_vary():
    def values(name, field):
        return {getattr(config, field) for config in planned(name)}

    assert values("group_size", "group_size") == {4, 8, 16, 32, 64}
    assert values("group_size", "prompts_per_update") == {8}
    epsilons = {config.estimator_options.get("epsilon", 0.2) for config in planned("threshold")}
    assert epsilons == {0, 0.1, 0.2, 0.5, 1, 3}
    assert {config.task_options.get("digits", 6) for config in planned("length")} == {6, 12, 24}
    assert len(values("starting_accuracy", "model")) == 3
    steps = {}
    for config in planned("smaller_steps"):
        steps.setdefault((config.estimator, config.model, config.seed), []).append(config.learning_rate)
    assert len(steps) == 5 * (5 + 5 + 2)
    for rates in steps.values():
        assert rates == pytest.approx([rates[0], rates[0] / 2, rates[0] / 4], rel=2e-3)
    assert values("advantage", "advantage") == {"std", "center", "length_corrected"}
    assert values("advantage", "detached") == {True, False}
    assert values("optimizer", "optimizer") == {"sgd", "adamw"} and None in values("optimizer", "gradient_clip")
    for config in planned("advantage"):
        longest = config.learning_rate * config.gradient_clip
        assert longest == pytest.approx(0.1 * 0.3, rel=1e-3), "the longest possible update is that of main"
    half = planned("half_steps")
    assert {config.estimator for config in half} == set(CORE) and {config.delay for config in half} == {16, 64}
    assert len(half) == 2 * len({config.run_id for config in half} & {config.run_id for config in planned("main")})
    alphas = {config.estimator_options.get("alpha", 0.2) for config in planned("mixture") if config.estimator != "gmc"}
    assert alphas == {0.1, 0.2, 0.5}


def test_protocols_are_written_before_the_runs_and_kept_after(tmp_path):
    experiments = [get_experiment("main"), get_experiment("threshold"), get_experiment("smoke")]
    assert [path.parent.name for path in write_protocols(experiments, tmp_path)] == ["main", "threshold"]
    assert write_protocols(experiments, tmp_path) == []
    (tmp_path / "main" / "provenance.json").write_text("{}")
    (tmp_path / "main" / "protocol.md").write_text("as it was run")
    (tmp_path / "threshold" / "protocol.md").write_text("an earlier draft")
    assert [path.parent.name for path in write_protocols(experiments, tmp_path)] == ["threshold"]
    assert (tmp_path / "main" / "protocol.md").read_text() == "as it was run"


def test_every_protocol_is_dated_and_complete():
    for experiment in EXPERIMENTS.values():
        if experiment.name == "smoke":
            continue
        first, text = experiment.protocol.split("\n", 1)
        assert first.startswith(f"# Protocol: {experiment.name}, version {experiment.version} (written 2026-")
        assert "before the runs" in first and "Question: " in text
        assert max(map(len, text.splitlines())) <= 120


def test_the_list_says_runs_cost_and_what_is_waited_for(capsys):
    assert command.main(["--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(EXPERIMENTS)
    assert "490 runs" in lines["main_tuning"] and "h CPU" in lines["main"]
