"""The rule for C8, robustness on Qwen3 and best among the stable baselines at large delay, from committed run tables.

Only a *tuned* comparison decides, because the mean of a weight acts like a step size: at one common step size a method
can win by being scaled better. An experiment is tuned if beside its tables `NAME` there are tables `NAME_tuning`:

- they hold every method at `GRID` step sizes or more, on tuning seeds that `NAME` does not use;
- a method's step size is chosen from them alone, by the rule of step_sizes.py;
- its result is the final accuracy of the runs of `NAME` at that step size, on `FRESH` seeds shared with GMC, or more.

Large delays are the `LARGE` largest ones of the experiment; the verdict is the least favourable of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gmc_core import paths
from gmc_core.reporting.figure_style import mean_interval
from gmc_core.reporting.run_records import load_runs
from gmc_core.reporting.step_sizes import choose_step_sizes, split_by_choice
from gmc_core.reporting.verdicts import CONDITIONS, CONFIRMED, CONTRADICTED, NEEDS_GPU, NOT_VISIBLE, Finding

if TYPE_CHECKING:
    import pandas as pd

TUNED_EXPERIMENT = "main"
TUNING = "_tuning"  # the name of the tables that chose an experiment's step sizes ends so
FIRST_EXPERIMENT = "first_staleness"  # one common step size: shown, never a verdict
OWN_MODELS = "data/"  # models of this repository; anything else in a config is a checkpoint from a hub
GRID = 4  # step sizes of a method, at least
FRESH = 5
LARGE = 2  # delays that count as large
MEASURE = "final_accuracy"
FALLEN = 0.5  # a run has collapsed if its final accuracy is below this share of its best, the start included
MOST_COLLAPSES = 0.2  # share of collapsed runs above which a method is not stable
LEVEL = 0.95


@dataclass(frozen=True)
class Tuned:
    """One method at the largest delay, at the step size its tuning seeds choose. accuracy: final, by fresh seed."""

    name: str
    step_size: float
    edge: bool
    accuracy: pd.Series
    collapsed: float

    @property
    def stable(self) -> bool:
        return self.collapsed <= MOST_COLLAPSES


class NotTuned(ValueError):
    """The tables do not hold a tuned comparison; the message says what is missing."""


def tuned_results(fresh: pd.DataFrame, tuning: pd.DataFrame, delay: int) -> dict[str, Tuned]:
    """Every method of `fresh` at this delay. Raises `NotTuned`, naming the first thing that is missing."""
    runs = fresh[fresh["delay"] == delay]
    if "gmc" not in set(runs["estimator"]) or runs["estimator"].nunique() < 2:
        raise NotTuned(f"needs gmc and another method at delay {delay}")
    if both := sorted(set(runs["seed"]) & set(tuning["seed"])):
        raise NotTuned(f"seeds {both} are among the tuning seeds")
    _check_grid(tuning, list(runs["estimator"].unique()), delay)
    try:
        at_choice, _ = split_by_choice(runs, tuning)
        choices = choose_step_sizes(tuning)
    except ValueError as error:
        raise NotTuned(str(error)) from error
    choices = choices[choices["delay"] == delay].set_index("estimator")
    results = {}
    for name, own in at_choice.groupby("estimator", sort=False):
        if own["seed"].duplicated().any():
            raise NotTuned(f"{name} has several runs of one seed and step size: the table mixes settings")
        accuracy = own.set_index("seed")[MEASURE]
        choice = choices.loc[name]
        results[str(name)] = Tuned(
            str(name), float(choice["step_size"]), bool(choice["edge"]), accuracy, float(collapsed(own).mean())
        )
    for name, result in results.items():
        shared = results["gmc"].accuracy.index.intersection(result.accuracy.index)
        if len(shared) < FRESH:
            raise NotTuned(
                f"{name} has {len(shared)} fresh seeds in common with gmc at delay {delay}, it needs {FRESH}"
            )
    return results


def _check_grid(tuning: pd.DataFrame, names: Sequence[str], delay: int) -> None:
    tuned = tuning[tuning["delay"] == delay].groupby("estimator")["learning_rate"].nunique()
    for name in names:
        if tuned.get(name, 0) < GRID:
            raise NotTuned(f"{name} has {tuned.get(name, 0)} tuned step sizes at delay {delay}, it needs {GRID}")


def collapsed(runs: pd.DataFrame) -> pd.Series:
    """Whether each run ends below `FALLEN` of its best accuracy, that before training included.

    Stricter than the column of that name in the tables, to which a run that is at 0 from the first evaluation on has
    no best to fall from.
    """
    return runs["final_accuracy"] < FALLEN * runs[["best_accuracy", "initial_accuracy"]].max(axis=1)


def paired(first: pd.Series, second: pd.Series, level: float = LEVEL) -> tuple[float, float, float, int]:
    """Mean of first - second over their common seeds, with its Student-t interval, and their number.

    Student's t and not the bootstrap: with five seeds the latter's intervals are too narrow for a verdict.
    """
    difference = (first - second).dropna().to_numpy(dtype=float)
    mean, low, high, n = mean_interval(difference[:, None], level=level)
    return float(mean[0]), float(low[0]), float(high[0]), n


def judge_comparison(fresh: pd.DataFrame, tuning: pd.DataFrame, label: str) -> Finding:
    """The verdict of a tuned experiment: the least favourable one of its large delays. Raises `NotTuned`."""
    delays = sorted(int(delay) for delay in fresh["delay"].unique() if delay > 0)[-LARGE:]
    if not delays:
        raise NotTuned("needs runs at a positive delay")
    findings = [judge_delay(tuned_results(fresh, tuning, delay), f"{label}, delay {delay}") for delay in delays]
    worst = min(findings, key=lambda finding: FAVOUR.index(finding.verdict))
    return Finding(worst.verdict, "; ".join(finding.evidence for finding in findings))


def judge_delay(results: Mapping[str, Tuned], label: str) -> Finding:
    """GMC at one delay against every baseline that is stable (`MOST_COLLAPSES`), paired by seed.

    Contradicted: GMC is not stable while a baseline is, or a stable baseline is better (interval above 0, Bonferroni
    over the baselines). Confirmed: GMC is better than each one (every interval above 0, which needs no correction).
    With conditions: no such, but its mean is the highest and it is better than at least one (corrected); or it would be
    confirmed, but a stable baseline's step size lies at an end of its grid. Not visible: everything else.
    """
    gmc = results["gmc"]
    baselines = [result for name, result in results.items() if name != "gmc"]
    stable = [result for result in baselines if result.stable]
    head = f"{label}, own best step sizes: GMC {gmc.accuracy.mean():.3f}, {gmc.collapsed:.0%} collapsed"
    if not stable:
        verdict = CONDITIONS if gmc.stable else NOT_VISIBLE
        return Finding(verdict, f"{head}; no baseline is stable, there is nothing to be best of")
    corrected = 1 - (1 - LEVEL) / len(stable)
    plain = {other.name: paired(gmc.accuracy, other.accuracy) for other in stable}
    strict = {other.name: paired(gmc.accuracy, other.accuracy, corrected) for other in stable}
    edges = [other.name for other in stable if other.edge]
    evidence = f"{head}; GMC minus stable baselines (mean, 95 %): " + _listed(plain)
    if unstable := [other.name for other in baselines if not other.stable]:
        evidence += f"; not stable: {', '.join(unstable)}"
    if edges:
        evidence += f"; step size at an end of its grid: {', '.join(edges)}"
    if not gmc.stable or any(high < 0 for _, _, high, _ in strict.values()):
        return Finding(CONTRADICTED, evidence)
    if all(low > 0 for _, low, _, _ in plain.values()):
        return Finding(CONDITIONS if edges else CONFIRMED, evidence)
    highest = all(mean > 0 for mean, *_ in plain.values())
    some = any(low > 0 for _, low, _, _ in strict.values())
    return Finding(CONDITIONS if highest and some else NOT_VISIBLE, evidence)


def _listed(differences: dict[str, tuple[float, float, float, int]]) -> str:
    return ", ".join(
        f"{name} {mean:+.3f} [{low:+.3f}, {high:+.3f}] (n = {n})" for name, (mean, low, high, n) in differences.items()
    )


def describe_untuned(runs: pd.DataFrame, label: str) -> str:
    """What a table without tuning shows at its largest delay: GMC minus every other method, mean and range of seeds."""
    delay = runs["delay"].max()
    table = runs[runs["delay"] == delay]
    if table.duplicated(["estimator", "seed"]).any() or "gmc" not in set(table["estimator"]):
        return f"{label} is no comparison of one run per method and seed that includes gmc"
    final = table.pivot(index="seed", columns="estimator", values=MEASURE)
    gaps = {name: (final["gmc"] - final[name]).dropna() for name in table["estimator"].unique() if name != "gmc"}
    listed = [f"{name} {gap.mean():+.3f} [{gap.min():+.3f}, {gap.max():+.3f}]" for name, gap in gaps.items()]
    above = [name for name, gap in gaps.items() if len(gap) and (gap < 0).all()]
    fell = collapsed(table).groupby(table["estimator"], sort=False).sum()
    fallen = [f"{name} {count}" for name, count in fell.items() if count]
    return (
        f"{label} (one common step size, not tuned: no verdict), delay {delay}, n = {len(final)} seeds: final accuracy "
        f"of GMC {final['gmc'].mean():.3f}; GMC minus other, mean [lowest, highest seed]: {', '.join(listed)}; above "
        f"GMC with every seed: {', '.join(above) or 'none'}; collapsed runs: {', '.join(fallen) or 'none'}"
    )


def judge_small_qwen3(root: Path | None = None) -> Finding:
    """C8 on the small Qwen3 of this repository: the tuned experiment decides, `TUNED_EXPERIMENT`, if it is there.

    At most `confirmed with conditions`: the claim is about checkpoints. Without a tuned table it is `not visible`, and
    the evidence is what the first, untuned experiment shows.
    """
    notes = []
    for name in (TUNED_EXPERIMENT, FIRST_EXPERIMENT):
        try:
            runs = load_runs(name, root=root).runs
        except FileNotFoundError:
            notes.append(f"no tables of `{name}`")
            continue
        runs = runs[[str(model).startswith(OWN_MODELS) for model in runs["model"]]]
        if runs.empty:
            notes.append(f"`{name}` has no run of the small model")
        elif name == TUNED_EXPERIMENT:
            try:
                found = judge_comparison(runs, _tuning_runs(name, root), f"`{name}`")
            except NotTuned as error:
                notes.append(f"`{name}` is not tuned: {error}")
                continue
            if found.verdict == CONFIRMED:
                return Finding(CONDITIONS, f"on a small model only; {found.evidence}")
            return found
        else:
            notes.append(describe_untuned(runs, f"`{name}`"))
    return Finding(NOT_VISIBLE, "; ".join(notes))


def _tuning_runs(name: str, root: Path | None) -> pd.DataFrame:
    try:
        return load_runs(f"{name}{TUNING}", root=root).runs
    except FileNotFoundError as error:
        raise NotTuned(f"there are no complete tables `{name}{TUNING}`") from error


FAVOUR = (CONTRADICTED, NOT_VISIBLE, CONDITIONS, CONFIRMED)


def judge_checkpoints(root: Path | None = None) -> Finding:
    """C8 on Qwen3 checkpoints: decided by tuned tables of theirs; with several, the least favourable one counts."""
    folder = root or paths.COMMITTED_RUNS
    names = sorted(path.parent.name for path in folder.glob("*/provenance.json"))
    names = [name for name in names if not name.endswith(TUNING)]  # those choose step sizes and decide nothing
    findings: list[Finding] = []
    for name in names:
        tables = load_runs(name, root=root, allow_partial=True)
        if not tables.complete:
            continue  # still growing: decides nothing
        runs = tables.runs
        runs = runs[[_is_checkpoint(str(model)) for model in runs["model"]]]
        for model, table in runs.groupby("model"):
            try:
                tuning = _tuning_runs(name, root)
                findings.append(judge_comparison(table, tuning[tuning["model"] == model], f"`{name}`, {model}"))
            except NotTuned as error:
                findings.append(Finding(NOT_VISIBLE, f"`{name}`, {model} is not tuned: {error}"))
    if not findings:
        return Finding(NEEDS_GPU, "no run on a Qwen3 checkpoint is committed: hours on a GPU, not on two CPU cores")
    return min(findings, key=lambda finding: FAVOUR.index(finding.verdict))


def _is_checkpoint(model: str) -> bool:
    return not model.startswith(OWN_MODELS) and "qwen3" in model.lower()
