"""Rules for the claims about convergence and rates: C2 (delay enters through bias), C4 (delayed training converges),
C5 (threshold), C6 (group size in the tuned delay term).

Each claim has a `judge_...(data)`, a rule on data alone whose thresholds are the constants here. C2 and C4 judge exact
delayed runs (`measure_delayed_runs`), C5 and C6 the committed data of figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from gmc_core.reporting.verdicts import CONDITIONS, CONFIRMED, CONTRADICTED, NOT_VISIBLE, Finding, number, numbers
from gmc_core.theory.delayed_bound import ADVANTAGE, SCORE, DelayedBound, bound_along_runs
from gmc_core.theory.ratio_laws import LognormalRatio
from gmc_core.theory.slopes import log_slope
from gmc_core.theory.worst_case import group_mass_adversary, worst_case_excess_lp

EPSILON = 0.2
DELAYS = (0, 2, 8, 32)
MEAN_BOUNDED = ("gmc", "water_filling", "tic_truncate", "tic_mask", "snis", "uncorrected")  # mean weight <= c always
UNBOUNDED = "is"
COMMON_STEP, COMMON_UPDATES, RUNS = 1.0, 100, 48
HORIZONS = ((50, 1.0), (200, 0.5), (450, 1 / 3))  # (updates T, step size ~ T^(-1/2))


@dataclass(frozen=True)
class DelayedRuns:
    """`rules`: each at one step size, under rising delays (0 first); `horizons`: GMC, T rising with eta ~ T^(-1/2)."""

    rules: Mapping[str, DelayedBound]
    horizons: Sequence[DelayedBound]


def measure_delayed_runs() -> DelayedRuns:
    """Exact delayed training of a three-response policy, `RUNS` runs of each rule under each delay."""
    rules = {
        name: bound_along_runs(name, DELAYS, COMMON_STEP, steps=COMMON_UPDATES, runs=RUNS, epsilon=EPSILON)
        for name in (*MEAN_BOUNDED, UNBOUNDED)
    }
    horizons = [
        bound_along_runs("gmc", DELAYS, step, steps=updates, runs=RUNS, epsilon=EPSILON) for updates, step in HORIZONS
    ]
    return DelayedRuns(rules, horizons)


# --- C2: delay enters through bias once the second moment is controlled ---------------------------------------------

STRONG, FAIR = 0.8, 0.5  # rank correlations
ROUNDING = 1e-12


def judge_delay_through_bias(found: DelayedRuns) -> Finding:
    """Over the rules whose mean weight is at most c, and the delays above 0: does what delay costs follow the bias?

    Cost: the mean squared gradient of the run above that of the same rule without delay. Contradicted: a gradient
    exceeds the bound c A S, which no delay enters (the second moment is then not controlled), or the rank correlation
    of cost and squared bias is not positive. Confirmed: it is at least `STRONG`, and above that of cost and second
    moment. With conditions: at least `FAIR`. Not visible: in between, or no rule is ever biased.
    """
    runs = {name: run for name, run in found.rules.items() if name in MEAN_BOUNDED}
    norm = max(float(run.largest_norm.max()) for run in runs.values())
    limit = (1 + EPSILON) * ADVANTAGE * SCORE
    cost, bias, moment = (
        np.concatenate([np.asarray(part(run), dtype=float) for run in runs.values()])
        for part in (
            lambda run: run.left_side[1:] - run.left_side[0],
            lambda run: run.squared_bias[1:],
            lambda run: run.second_moment[1:] - run.second_moment[0],
        )
    )
    gmc, free = found.rules["gmc"], found.rules[UNBOUNDED]
    without, with_delay = (number(round(float(gmc.squared_bias[k]), 12)) for k in (0, -1))
    evidence = (
        f"largest gradient norm {number(norm)} of at most {number(limit)} at any delay; GMC from delay 0 to "
        f"{gmc.delays[-1]}: second moment {_change(gmc.second_moment)}, squared bias {without} to {with_delay}, "
        f"squared gradient {_change(gmc.left_side)} (uncapped IS, unbiased: second "
        f"moment {_change(free.second_moment)}, squared gradient {_change(free.left_side)})"
    )
    if norm > limit * (1 + 1e-9):
        return Finding(CONTRADICTED, evidence)
    if bias.max() < ROUNDING or np.ptp(cost) == 0:
        return Finding(NOT_VISIBLE, f"delay costs nothing or biases nothing here; {evidence}")
    with_bias = float(spearmanr(cost, bias).statistic)
    with_moment = float(spearmanr(cost, moment).statistic) if np.ptp(moment) > 0 else 0.0
    evidence = (
        f"rank correlation of what delay costs with the squared bias {with_bias:+.2f}, with the second moment "
        f"{with_moment:+.2f} ({len(runs)} rules x {len(cost) // len(runs)} delays); {evidence}"
    )
    if with_bias <= 0:
        return Finding(CONTRADICTED, evidence)
    if with_bias < FAIR:
        return Finding(NOT_VISIBLE, evidence)
    return Finding(CONFIRMED if with_bias >= STRONG and with_bias > with_moment else CONDITIONS, evidence)


def _change(values: Any) -> str:
    return f"{float(values[-1] / values[0]) - 1:+.0%}"


# --- C4: training with stale rollouts converges ---------------------------------------------------------------------

AT_WORK = 0.01  # probability that the rule changes a group, at the largest delay, below which its bound is not tested
RATE, NO_RATE = -0.4, -0.1  # slope of the mean squared gradient in T: -1/2 is promised for eta ~ T^(-1/2)
STANDARD_ERRORS = 3.0


def judge_convergence(found: DelayedRuns) -> Finding:
    """Does Theorem 1 hold along delayed runs, does the squared gradient fall with T, does the bound say anything?

    Contradicted: a left side exceeds the bound with exact moments by more than `STANDARD_ERRORS`, or the slope in T is
    above `NO_RATE` under some delay. Not visible: GMC changed too few groups (`AT_WORK`), or the slope lies between
    `NO_RATE` and `RATE`. Confirmed: neither, and what can be proved without the path (a bound on the norm, the
    ratio-based bias bound) lies below the squared gradient before training. With conditions: that is not so, the
    provable bound is vacuous at these lengths.
    """
    every = [*found.rules.values(), *found.horizons]
    measured = [run.left_side - STANDARD_ERRORS * run.standard_error for run in every]
    broken = sum(int((low > run.bound).sum()) for low, run in zip(measured, every, strict=True))
    settings = sum(len(run.delays) for run in every)
    tightness = max(float((run.left_side / run.bound).max()) for run in every)
    changed = min(float(run.changed[-1]) for run in found.horizons)
    last, start = found.horizons[-1], found.horizons[0].initial_squared_gradient
    steps = [run.steps for run in found.horizons]
    slopes = [log_slope(steps, [float(run.left_side[k]) for run in found.horizons]) for k in range(len(last.delays))]
    evidence = (
        f"Theorem 1 with exact moments holds in {settings - broken} of {settings} settings (left side at most "
        f"{tightness:.0%} of the right); GMC at delay {last.delays[-1]}, T = {', '.join(map(str, steps))}: squared "
        f"gradient {numbers(run.left_side[-1] for run in found.horizons)}, slopes {min(slopes):.2f} to "
        f"{max(slopes):.2f} over delays; bound at T = {steps[-1]}: {number(last.bound[-1])} with exact moments, "
        f"{number(last.proved[-1])} provable, {number(start)} before training"
    )
    if broken or max(slopes) > NO_RATE:
        return Finding(CONTRADICTED, evidence)
    if changed < AT_WORK or max(slopes) > RATE:
        return Finding(NOT_VISIBLE, f"GMC changed {changed:.1%} of groups; {evidence}")
    informative = bool((last.proved < start).all())
    return Finding(CONFIRMED if informative else CONDITIONS, evidence)


# --- C5: epsilon^-4 to epsilon^-2 against TIC-GRPO ------------------------------------------------------------------

SMALL_THRESHOLD = 0.1  # the powers are statements for epsilon -> 0
SLOPE_TOLERANCE = 0.15
CHI_SQUARE, GROUP_SIZE = 1e-6, 16
FIXED_LAW_KL, FIXED_LAW_THRESHOLDS = 0.125, (0.05, 0.1, 0.2, 0.4)


def measure_group_mass_slopes() -> dict[str, float]:
    """Powers of epsilon in GMC's squared worst case: over laws of M (linear program), and for one law of r (attained).

    Both at fixed chi-square and group size, for epsilon up to `SMALL_THRESHOLD`.
    """
    epsilons = np.geomspace(0.01, SMALL_THRESHOLD, 5)
    variance = CHI_SQUARE / GROUP_SIZE
    program = [worst_case_excess_lp("tic_truncate", variance, float(e)).value ** 2 for e in epsilons]
    reached = [group_mass_adversary(GROUP_SIZE, CHI_SQUARE, float(e)) ** 2 for e in epsilons]
    return {"upper": log_slope(epsilons, program), "attained": log_slope(epsilons, reached)}


def judge_threshold(figure: Mapping[str, Any], group_mass: Mapping[str, float]) -> Finding:
    """`figure`: data of fig4_delay (squared worst cases of TIC against epsilon); `group_mass`: the powers for GMC.

    Confirmed: GMC has -2 and TIC -4, whether TIC masks or truncates. With conditions: TIC has -4 in one of the two
    readings only. Contradicted: in neither, or GMC's power is not -2. Tolerance `SLOPE_TOLERANCE`.
    """
    small = np.asarray(figure["worst_epsilon"]) <= SMALL_THRESHOLD
    tic = {
        name: log_slope(np.asarray(figure["worst_epsilon"])[small], np.asarray(figure[f"worst_{name}"])[small])
        for name in ("tic_mask", "tic_truncate")
    }
    law = LognormalRatio.from_kl(FIXED_LAW_KL)
    fixed = [
        log_slope(FIXED_LAW_THRESHOLDS, [excess(e) ** 2 for e in FIXED_LAW_THRESHOLDS])
        for excess in (law.truncate_excess, law.mask_excess)
    ]
    evidence = (
        f"power of epsilon in the squared worst case: GMC {group_mass['upper']:.2f} (attained by a law: "
        f"{group_mass['attained']:.2f}), TIC {tic['tic_mask']:.2f} if it masks, {tic['tic_truncate']:.2f} if it "
        f"truncates; no such power for a fixed law (lognormal, KL {FIXED_LAW_KL:g}: truncating {fixed[0]:.1f}, masking "
        f"{fixed[1]:.1f})"
    )
    ours = all(abs(slope + 2) <= SLOPE_TOLERANCE for slope in group_mass.values())
    quartic = [name for name, slope in tic.items() if abs(slope + 4) <= SLOPE_TOLERANCE]
    if not ours or not quartic:
        return Finding(CONTRADICTED, evidence)
    if len(quartic) == len(tic):
        return Finding(CONFIRMED, evidence)
    return Finding(CONDITIONS, f"holds against the {quartic[0].removeprefix('tic_')} reading only: {evidence}")


# --- C6: G^(-2/5) in the tuned delay term ---------------------------------------------------------------------------

EXPONENT, EXPONENT_TOLERANCE = -2 / 5, 0.01
SEEN = 0.9  # share of the exponent that the total bound must show to count as showing it


def judge_group_exponent(figure: Mapping[str, Any]) -> Finding:
    """`figure`: data of fig4_delay: delay part and total of the tuned bound against G, window of steps, G-slopes.

    Contradicted: the delay part does not fall like G^(-2/5) (`EXPONENT_TOLERANCE`). Not visible: it does, but the
    window of steps in which it leads is empty at every group size. Confirmed: the total shows at least `SEEN` of the
    exponent at every number of steps drawn. With conditions: it does not, it shows it in a window only.
    """
    sizes = np.asarray(figure["bound_sizes"])
    part = log_slope(sizes, figure["bound_delay_part"])
    total = [log_slope(sizes, values) for values in figure["bound_total"]]
    window, closes = np.asarray(figure["slope_window"]), np.asarray(figure["window_closes"])
    steps, inside = np.asarray(figure["slope_steps"]), []
    for (first, last), slope in zip(window, np.asarray(figure["slope"]), strict=True):
        inside += list(slope[(steps >= first) & (steps <= last)])
    groups = ", ".join(str(G) for G in figure["slope_groups"])
    in_window = f"{min(inside):.2f} to {max(inside):.2f} inside its window" if inside else "in no window"
    evidence = (
        f"G-slope of the tuned delay part {part:.3f}; of the total bound {numbers(total)} at "
        f"{', '.join(f'{T:g}' for T in figure['bound_steps'])} steps; with stronger curvature and delay "
        f"{figure['window_delays'][-1]} (G = {groups}) {in_window}; the window closes at "
        + ", ".join(f"G = {G:.0f} (delay {d})" for G, d in zip(closes, figure["window_delays"], strict=True))
    )
    if abs(part - EXPONENT) > EXPONENT_TOLERANCE:
        return Finding(CONTRADICTED, evidence)
    if all(slope <= SEEN * EXPONENT for slope in total):
        return Finding(CONFIRMED, evidence)
    return Finding(CONDITIONS if inside else NOT_VISIBLE, evidence)
