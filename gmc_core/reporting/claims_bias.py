"""Rules for the claims about bias at a fixed pair of policies: C1 (trade-off), C3 (optimality), C7 (growing groups).

Each claim has a `judge_...(data)`, a rule on plain arrays whose thresholds are the constants here, so that it can be
fed any data; what is not in a committed figure has a `measure_...()` beside it. Exact: nothing here is sampled but the
pairs of policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gmc_core.reporting.verdicts import CONDITIONS, CONFIRMED, CONTRADICTED, NOT_VISIBLE, Finding, number
from gmc_core.theory.policy_pairs import count_larger_bias, stale_pairs

# --- C1: thresholds trade second moment for bias --------------------------------------------------------------------

CAPPED = ("gmc", "tic_truncate", "tic_mask")
RIVALS = ("snis", "water_filling", "mixture", "tic_truncate", "tic_mask", "uncorrected")
THRESHOLDS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
PAIRS_PER_KL, PAIR_KLS, GROUP_SIZE = 8, (0.1, 0.5), 8
CHANGE = 1e-9  # smaller differences are rounding
MOSTLY = 0.9  # share of paths (end to end) that must trade for the claim to hold at all; below half it is contradicted


@dataclass(frozen=True)
class TradeOff:
    """bias, second_moment: (paths, thresholds), a path being one rule on one pair of policies, thresholds rising;
    better: for each other rule, on how many of `pairs` it has a smaller bias and a smaller second moment than GMC."""

    thresholds: Sequence[float]
    bias: np.ndarray
    second_moment: np.ndarray
    better: Mapping[str, int]
    pairs: int


def measure_trade_off() -> TradeOff:
    """Exact bias and second moment of the capped rules along rising thresholds, on random stale pairs."""
    pairs = [
        pair for kl in PAIR_KLS for pair in stale_pairs(PAIRS_PER_KL, kl, torch.Generator().manual_seed(0))
    ]  # fmt: skip
    moments = [
        [pair.moments(name, GROUP_SIZE, epsilon=epsilon) for epsilon in THRESHOLDS] for name in CAPPED for pair in pairs
    ]
    better = dict.fromkeys(RIVALS, 0)
    for pair in pairs:
        gmc = pair.moments("gmc", GROUP_SIZE)
        for name in RIVALS:
            other = pair.moments(name, GROUP_SIZE)
            both = other.bias < gmc.bias - CHANGE and other.second_moment < gmc.second_moment - CHANGE
            better[name] += both
    return TradeOff(
        THRESHOLDS,
        bias=np.array([[m.bias for m in path] for path in moments]),
        second_moment=np.array([[m.second_moment for m in path] for path in moments]),
        better=better,
        pairs=len(pairs),
    )


def judge_trade_off(found: TradeOff) -> Finding:
    """A path trades if, from its lowest to its highest threshold, the bias falls and the second moment rises.

    Confirmed: every path trades, and so does every step between neighbouring thresholds. With conditions: at least
    `MOSTLY` of the paths. Contradicted: fewer than half. Not visible: in between, or no threshold changes any bias.
    """
    bias_step, moment_step = np.diff(found.bias), np.diff(found.second_moment)
    active = np.abs(bias_step).max(-1) > CHANGE
    if not active.any():
        return Finding(NOT_VISIBLE, "no threshold changes the bias of any rule: nothing is traded")
    falls = found.bias[active, -1] < found.bias[active, 0] - CHANGE
    rises = found.second_moment[active, -1] > found.second_moment[active, 0] + CHANGE
    ends = float((falls & rises).mean())
    bias_breaks = int((bias_step[active] > CHANGE).sum())
    moment_breaks = int((moment_step[active] < -CHANGE).sum())
    steps = bias_step[active].size
    dominated = [f"{name} on {count}" for name, count in found.better.items() if count]
    evidence = (
        f"raising the threshold from {found.thresholds[0]:g} to {found.thresholds[-1]:g} lowers the bias and raises "
        f"the second moment on {int((falls & rises).sum())} of {int(active.sum())} paths (rule x pair of policies); "
        f"of {steps} single steps the bias rises in {bias_breaks}, the second moment falls in {moment_breaks}; both "
        f"smaller than GMC's: {', '.join(dominated) or 'no other rule'} (of {found.pairs} pairs)"
    )
    if ends < 0.5:
        return Finding(CONTRADICTED, evidence)
    if ends < MOSTLY:
        return Finding(NOT_VISIBLE, evidence)
    return Finding(CONFIRMED if ends == 1 and bias_breaks == moment_breaks == 0 else CONDITIONS, evidence)


# --- C3: GMC minimises the ratio-based bias bound in its class ------------------------------------------------------

OPTIMUM_GAP = 1e-6  # distance to the linear program's optimum; figures store six digits
BASELINES = (0.5, 0.9)  # for the exact bias beside its bound
COUNT_PAIRS, COUNT_KL, COUNT_GROUP = 24, 0.5, 4


def measure_larger_bias() -> str:
    """On how many random pairs the exact bias of GMC exceeds that of truncation, for each baseline, in words."""
    pairs = stale_pairs(COUNT_PAIRS, COUNT_KL, torch.Generator().manual_seed(0))
    counts = [count_larger_bias(pairs, "gmc", "tic_truncate", COUNT_GROUP, baseline=beta) for beta in BASELINES]
    found = ", ".join(f"{count} (baseline {beta:g})" for count, beta in zip(counts, BASELINES, strict=True))
    return f"of {len(pairs)} random pairs GMC's bias itself exceeds truncation's on {found}"


def judge_optimality(figure: Mapping[str, Any], beside: str = "") -> Finding:
    """`figure`: data of fig2_geometry, distortion D(w) of random groups beside the optimum of a linear program.

    Confirmed: GMC reaches the optimum (within `OPTIMUM_GAP`) in every group. With conditions: in at least `MOSTLY` of
    the groups in which the cap is active. Contradicted: in fewer. Not visible: the cap is active in no group. Other
    rules in the class that reach it too are named: the minimiser is not unique, which the claim does not say it is.
    """
    active = np.asarray(figure["groups_mass"]) > 1 + float(figure["epsilon"])
    if not active.any():
        return Finding(NOT_VISIBLE, "the cap is active in no group")
    gaps = {
        key.removeprefix("groups_"): np.asarray(values) - figure["groups_lp"]
        for key, values in figure.items()
        if key.startswith("groups_") and key not in ("groups_mass", "groups_lp")
    }
    share = float((gaps["gmc"][active] <= OPTIMUM_GAP).mean())
    also = [name for name, gap in gaps.items() if name != "gmc" and (gap[active] <= OPTIMUM_GAP).all()]
    evidence = (
        f"GMC is at the linear program's optimum in {share:.0%} of {int(active.sum())} groups above the cap (largest "
        f"gap {number(max(float(gaps['gmc'].max()), 0.0))}); so is {', '.join(also) or 'no other rule'}"
    )
    evidence += f"; {beside}" if beside else ""
    if (gaps["gmc"] <= OPTIMUM_GAP).all():
        return Finding(CONFIRMED, evidence)
    return Finding(CONDITIONS if share >= MOSTLY else CONTRADICTED, evidence)


# --- C7: growing groups ---------------------------------------------------------------------------------------------

VANISHED = 0.05  # bias at the largest group, as a share of that at the smallest
PERSISTS = 0.95
HALVED = 0.5
PER_ROLLOUT = ("tic_truncate", "tic_mask")
PRACTICAL_GROUP = 64


def judge_group_growth(figure: Mapping[str, Any]) -> Finding:
    """`figure`: data of fig3_bias: two outcomes, an autoregressive pair, long sequences at several divergences.

    GMC: the share of its bias left at the largest group size of each setting. TIC, truncating or masking: the same.
    Confirmed: at most `VANISHED` left for GMC everywhere, at least `PERSISTS` for TIC. With conditions: GMC has at
    least halved everywhere, TIC's has not, somewhere. Contradicted: GMC's bias has not halved in some setting, or TIC's
    has in all of them ("can persist" is a claim about some).
    """
    settings = {"two outcomes": ("two", "two_sizes"), "autoregressive policy": ("pair", "pair_sizes")}
    left = {place: _left(figure[f"{key}_gmc"]) for place, (key, _) in settings.items()}
    tic = [_left(figure[f"{key}_{name}"]) for key, _ in settings.values() for name in PER_ROLLOUT]
    snis = max(_left(figure[f"{key}_snis"]) for key, _ in settings.values())
    evidence = "GMC keeps " + ", ".join(
        f"{_percent(left[place])} of its bias at G = {figure[sizes][-1]} ({place})"
        for place, (_, sizes) in settings.items()
    )
    groups, kls = np.asarray(figure["sequence_sizes"]), np.atleast_1d(figure["sequence_kl"])
    curves = [np.asarray(figure[f"sequence_gmc_{k}"]) for k in range(len(kls))]
    evidence += f"; of its bound for sequences of KL {', '.join(f'{kl:g}' for kl in kls)}:"
    for size in dict.fromkeys((PRACTICAL_GROUP, int(groups[-1]))):
        if size in groups:
            kept = (float(curve[groups == size][0] / curve[0]) for curve in curves)
            evidence += f" {', '.join(map(_percent, kept))} at G = {size},"
    left |= {f"sequences, KL {kl:g}": _left(curve) for kl, curve in zip(kls, curves, strict=True)}
    evidence = (
        evidence.rstrip(",") + f"; TIC keeps at least {min(tic):.0%}; self-normalised IS at most {_percent(snis)}"
    )
    if max(left.values()) > HALVED or max(tic) < HALVED:
        return Finding(CONTRADICTED, evidence)
    complete = max(left.values()) <= VANISHED and min(tic) >= PERSISTS
    return Finding(CONFIRMED if complete else CONDITIONS, evidence)


def _left(curve: Any) -> float:
    """Last value over the first."""
    return float(curve[-1] / curve[0])


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"
