"""Worst cases by linear programming: the largest bias bound over all ratio laws, and the optimum over the class W.

Our reconstruction, docs/theory.md sections 3 and 4. Each function solves the problem numerically, without the closed
form it serves to check (`gmc_core.estimators.bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.stats import binom

__all__ = ["ClassOptimum", "WorstCase", "class_optimum_lp", "group_mass_adversary", "worst_case_excess_lp"]

_SIDE_POINTS = 600  # grid points on each side of 1 and of c
_NEGLIGIBLE = 1e-9  # probabilities below this are solver noise


@dataclass(frozen=True)
class WorstCase:
    """`value` of the supremum, reached (on the grid) by the law with `probability` on the ratios `support`."""

    value: float
    support: np.ndarray
    probability: np.ndarray


def worst_case_excess_lp(estimator: str, chi_square: float | int, epsilon: float | int = 0.2) -> WorstCase:
    """sup of E(r - c)_+ ("tic_truncate") or E[r 1{r >= c}] ("tic_mask") over laws with r >= 0, E r = 1, Var r = v.

    A linear program over the probabilities of a grid of ratios: dense near 1 and near c, reaching far into the tail.
    (With r > c instead of r >= c the second supremum is the same, approached but not attained.)
    """
    if not chi_square > 0 or not epsilon > 0:
        raise ValueError(f"chi_square and epsilon must be > 0, got {chi_square} and {epsilon}.")
    cap = 1 + epsilon
    reach = max(4 * epsilon, 4 * chi_square / epsilon, 10 * chi_square**0.5)
    away = np.geomspace(1e-3 * min(epsilon, chi_square / epsilon, chi_square**0.5), reach, _SIDE_POINTS)
    ratio = np.unique(np.concatenate([[0.0, 1.0, cap], 1 - away, 1 + away, cap - away, cap + away]))
    ratio = ratio[ratio >= 0]
    if estimator == "tic_truncate":
        objective = np.maximum(ratio - cap, 0.0)
    elif estimator == "tic_mask":
        objective = np.where(ratio >= cap, ratio, 0.0)
    else:
        raise ValueError(f"worst_case_excess_lp knows tic_truncate and tic_mask, got {estimator!r}.")
    moments = np.stack([np.ones_like(ratio), ratio - 1, (ratio - 1) ** 2 / chi_square])  # rows of similar size
    solution = linprog(-objective, A_eq=moments, b_eq=[1.0, 0.0, 1.0], bounds=(0, None), method="highs")
    if not solution.success:
        raise RuntimeError(f"the linear program failed for v={chi_square}, epsilon={epsilon}: {solution.message}")
    used = solution.x > _NEGLIGIBLE
    return WorstCase(float(-solution.fun), ratio[used], solution.x[used])


@dataclass(frozen=True)
class ClassOptimum:
    """`value` = min of D(w) = mean|r - w| over W, and one minimiser `weight` (a vertex chosen by the solver)."""

    value: float
    weight: np.ndarray


def class_optimum_lp(ratio: np.ndarray, epsilon: float | int = 0.2) -> ClassOptimum:
    """min of mean|r - w| over W = {w >= 0, mean w <= c} for one group, shape (G,), as a linear program. Section 3.

    Proposition 2 says the value is (M - c)_+; the minimiser is not unique once M > c.
    """
    ratio = np.asarray(ratio, dtype=float)
    if ratio.ndim != 1 or ratio.size == 0 or not np.isfinite(ratio).all() or (ratio < 0).any():
        raise ValueError(f"ratio must be one group of finite ratios >= 0, shape (G,); got shape {ratio.shape}.")
    if epsilon < 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon}.")
    G = ratio.size
    eye = np.eye(G)  # variables (w, u), u >= |r - w|; minimise mean u
    constraints = np.block([[-eye, -eye], [eye, -eye], [np.full((1, G), 1 / G), np.zeros((1, G))]])
    solution = linprog(
        np.r_[np.zeros(G), np.full(G, 1 / G)],
        A_ub=constraints,
        b_ub=np.r_[-ratio, ratio, 1 + epsilon],
        bounds=(0, None),
        method="highs",
    )
    if not solution.success:
        raise RuntimeError(f"the linear program over W failed: {solution.message}")
    return ClassOptimum(float(solution.fun), solution.x[:G])


def group_mass_adversary(group_size: int, chi_square: float | int, epsilon: float | int = 0.2) -> float:
    """E(M - c)_+ under a law chosen for this G: a rare jump of 2 G eps, compensated in the mean, Var r = v.

    About v / (4 G eps): the 1/G of Lemma 3 cannot be improved without fixing the law first. Section 4.
    """
    if not chi_square > 0 or not epsilon > 0 or group_size < 1:
        raise ValueError(f"need chi_square, epsilon > 0, group_size >= 1; got {chi_square}, {epsilon}, {group_size}.")
    jump = 2 * group_size * epsilon
    rare = chi_square / (jump**2 + chi_square)
    drop = jump * rare / (1 - rare)
    if drop > 1:
        raise ValueError(f"chi_square {chi_square} is too large for this law at G={group_size}: it would need r < 0.")
    jumps = np.arange(group_size + 1)
    mass = 1 + (jumps * jump - (group_size - jumps) * drop) / group_size
    return float(binom.pmf(jumps, group_size, rare) @ np.maximum(mass - 1 - epsilon, 0.0))
