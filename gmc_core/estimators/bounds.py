"""Closed forms of the theory: bias bounds, the biased-SGD bound, tuned steps, the delay window, the group size needed.

All of it is our reconstruction (docs/theory.md, the section is named in each docstring); the abstract of
arXiv 2610.01896 states only the rates. Notation: r = pi/b trajectory ratio, v = chi^2(pi || b) = Var_b r,
c = 1 + epsilon, M the group mass, A >= |A_i|, S >= ||score||, B = c A S >= ||g||, tau the delay, eta the step size,
T the number of steps.

Arguments are floats or fp64 tensors, which broadcast; a float in gives a float out. Quantities in `DelaySetting` are
floats. Invalid values raise ValueError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "DelaySetting",
    "TunedBound",
    "biased_sgd_bound",
    "bounded_ratio_excess_bound",
    "drift_chi_square_bound",
    "excess_bound",
    "gmc_mse_bound",
    "group_size_for_excess",
    "group_size_heuristic",
    "product_chi_square",
    "scarf_bound",
    "worst_case_excess",
]

Scalar = float | int
Number = float | int | Tensor

TRUNCATING = ("gmc", "water_filling", "tic_truncate")  # bias bound E(X - c)_+, X the group mass or one ratio


def _require(condition: bool | Tensor, message: str) -> None:
    if not bool(torch.as_tensor(condition).all()):
        raise ValueError(message)


def _check(variance: Number, epsilon: Number, *, positive: bool = False) -> None:
    at_zero = torch.as_tensor(epsilon, dtype=torch.float64)
    _require(torch.as_tensor(variance) >= 0, f"a variance (chi-square) must be >= 0, got {variance}.")
    _require(at_zero > 0 if positive else at_zero >= 0, f"epsilon must be {'> 0' if positive else '>= 0'}: {epsilon}.")


# --- bias bounds (sections 3 and 4) ---------------------------------------------------------------------------------


def scarf_bound(variance: Number, epsilon: Number) -> Number:
    """Scarf's bound E(X - 1 - eps)_+ <= (sqrt(v + eps^2) - eps) / 2 for E X = 1, Var X = v. Section 4, Lemma 3.

    At most v / (4 eps). Attained by a two-point law, hence the worst case over all laws. Written so that nothing
    cancels when v << eps^2.
    """
    _check(variance, epsilon)
    root = (variance + epsilon**2) ** 0.5
    safe = root + epsilon
    if not isinstance(safe, Tensor) and safe == 0:
        return 0.0
    return 0.5 * variance / safe


def excess_bound(estimator: str, chi_square: Number, group_size: Number, epsilon: Number = 0.2) -> Number:
    """Bound on E D(w) = E mean|r - w| through the variance v of the ratio alone. Section 4, Lemma 3.

    gmc, water_filling: scarf(v / G, eps); tic_truncate: scarf(v, eps); tic_mask: (1 + eps) v / eps^2.
    The bias of the gradient is at most A S times this. ValueError for another estimator.
    """
    _require(torch.as_tensor(group_size) >= 1, f"group_size must be >= 1, got {group_size}.")
    if estimator in ("gmc", "water_filling"):
        return scarf_bound(chi_square / group_size, epsilon)
    if estimator == "tic_truncate":
        return scarf_bound(chi_square, epsilon)
    if estimator == "tic_mask":
        _check(chi_square, epsilon, positive=True)
        return (1 + epsilon) * chi_square / epsilon**2
    raise ValueError(f"no ratio-based bias bound for {estimator!r}; known: gmc, water_filling, tic_truncate, tic_mask.")


def worst_case_excess(estimator: str, chi_square: Number, epsilon: Number = 0.2) -> Number:
    """Supremum of E(r - c)_+ (tic_truncate) or E[r 1{r >= c}] (tic_mask) over all laws r >= 0, E r = 1, Var r = v.

    tic_truncate: scarf(v, eps), for v <= 1 + 2 eps; tic_mask: (1 + eps) v / (v + eps^2), for v <= eps. Beyond these
    ranges r >= 0 binds and ValueError is raised (`gmc_core.theory.worst_case` has the linear program). Section 4.
    """
    _check(chi_square, epsilon, positive=True)
    limit = {"tic_truncate": 1 + 2 * epsilon, "tic_mask": epsilon}
    if estimator not in limit:
        raise ValueError(f"worst_case_excess knows tic_truncate and tic_mask, got {estimator!r}.")
    _require(
        torch.as_tensor(chi_square <= limit[estimator]),
        f"closed form of {estimator} holds for chi_square <= {limit[estimator]}, got {chi_square}: use the linear "
        "program worst_case_excess_lp.",
    )
    if estimator == "tic_truncate":
        return scarf_bound(chi_square, epsilon)
    return (1 + epsilon) * chi_square / (chi_square + epsilon**2)


def bounded_ratio_excess_bound(
    chi_square: Scalar, max_ratio: Scalar, group_size: Scalar, epsilon: Scalar = 0.2
) -> float:
    """Bernstein: E(M - c)_+ <= int_eps^inf exp(-G t^2 / (2 (v + R t / 3))) dt when r <= R. Section 6.

    Exponential in G where Scarf's bound is only 1 / G; M <= R, so the integral is cut at t = eps + R.
    """
    _check(chi_square, epsilon, positive=True)
    _require(max_ratio > 1, f"max_ratio bounds a ratio of mean 1, so it is > 1; got {max_ratio}.")
    t = torch.linspace(epsilon, epsilon + max_ratio, 20_001, dtype=torch.float64)
    return float(torch.trapezoid(torch.exp(-group_size * t**2 / (2 * (chi_square + max_ratio * t / 3))), t))


def gmc_mse_bound(chi_square: Number, group_size: Number, advantage: Scalar = 1.0, score: Scalar = 1.0) -> Number:
    """E ||g_GMC - grad J||^2 <= 2 A^2 S^2 (1 + 2 v) / G for a fixed baseline. Section 2, variance form."""
    return 2 * (advantage * score) ** 2 * (1 + 2 * chi_square) / group_size


def drift_chi_square_bound(distance: Number, score: Scalar) -> Number:
    """chi^2 <= (exp(S ||delta||) - 1)^2 when log pi is S-Lipschitz on the segment. Section 4, A7."""
    grown = torch.as_tensor(score * distance, dtype=torch.float64).expm1() ** 2
    return grown if isinstance(distance, Tensor) else float(grown)


def product_chi_square(token_chi_square: Number, length: Number) -> Number:
    """chi^2 of a product of `length` i.i.d. tokens: (1 + v_1)^L - 1. Section 6, long sequences."""
    return (1 + token_chi_square) ** length - 1


def group_size_for_excess(chi_square: Number, tolerance: Scalar, epsilon: Scalar = 0.2) -> Number:
    """The G at which Scarf's bound reaches `tolerance`: v / (4 tol (tol + eps)). Sufficient, rarely necessary."""
    _check(chi_square, epsilon)
    _require(tolerance > 0, f"tolerance must be > 0, got {tolerance}.")
    return chi_square / (4 * tolerance * (tolerance + epsilon))


def group_size_heuristic(kl: Number, quantile: Scalar = 1.28) -> Number:
    """exp(KL + z sqrt(2 KL)): group size needed for lognormal ratios, a heuristic without a constant. Section 6.

    log r has mean KL and variance 2 KL under pi; the group must reach the z-quantile of what pi visits.
    """
    exponent = kl + quantile * (2 * kl) ** 0.5
    return exponent.exp() if isinstance(exponent, Tensor) else math.exp(exponent)


# --- biased SGD and tuned steps (sections 2 and 5) --------------------------------------------------------------------


def biased_sgd_bound(
    gap: Number, step_size: Number, steps: Number, smoothness: Number, second_moment: Number, squared_bias: Number
) -> Number:
    """Theorem 1: mean_t E ||grad J||^2 <= 2 Delta / (eta T) + L eta B^2 + mean_t E ||b_t||^2. Section 2."""
    return 2 * gap / (step_size * steps) + smoothness * step_size * second_moment + squared_bias


@dataclass(frozen=True)
class TunedBound:
    """`value` of the bound at its best `step_size`, split: value = `sgd` + `delay_bias`.

    sgd: 2 Delta / (eta T) + L eta B^2 (without the second term when noise is left out); delay_bias: C eta^p.
    """

    value: float
    step_size: float
    sgd: float
    delay_bias: float


@dataclass(frozen=True)
class DelaySetting:
    """The constants of assumptions A1 to A7 and the delay.

    gap: Delta = J* - J(theta_0); smoothness: L; advantage: A; score: S; overlap: kappa in chi^2 <= kappa ||d theta||^2;
    overlap_radius: rho_0, where that holds (inf: everywhere); delay: tau, updates.
    """

    delay: Scalar
    gap: Scalar = 0.5
    smoothness: Scalar = 1.0
    advantage: Scalar = 1.0
    score: Scalar = 1.0
    overlap: Scalar = 1.0
    overlap_radius: Scalar = math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"DelaySetting.{name} must be > 0, got {value}.")

    def gradient_bound(self, epsilon: Scalar = 0.2) -> float:
        """B = (1 + eps) A S, the almost sure bound on ||g|| in the class W. Section 3."""
        return (1 + epsilon) * self.advantage * self.score

    def bias_coefficient(self, estimator: str, group_size: Scalar, epsilon: Scalar = 0.2) -> tuple[float, int]:
        """(C, p) with ||bias||^2 <= C eta^p while tau eta B <= rho_0. Sections 4 and 5.

        With v <= kappa B^2 tau^2 eta^2: gmc A^2 S^2 v^2 / (16 G^2 eps^2), tic_truncate the same at G = 1,
        tic_mask A^2 S^2 c^2 v^2 / eps^4, all p = 4; uncorrected L^2 B^2 (tau eta)^2, p = 2.
        """
        B = self.gradient_bound(epsilon)
        quartic = (self.advantage * self.score * self.overlap * (B * self.delay) ** 2) ** 2
        if estimator == "uncorrected":
            return (self.smoothness * self.delay * B) ** 2, 2
        _check(0.0, epsilon, positive=True)
        if estimator == "tic_mask":
            return (1 + epsilon) ** 2 * quartic / epsilon**4, 4
        if estimator in TRUNCATING:
            group = 1.0 if estimator == "tic_truncate" else float(group_size)
            return quartic / (16 * group**2 * epsilon**2), 4
        raise ValueError(f"no delay bound for {estimator!r}; known: {', '.join(TRUNCATING)}, tic_mask, uncorrected.")

    def tuned_bound(
        self,
        steps: Scalar,
        group_size: Scalar,
        epsilon: Scalar = 0.2,
        *,
        estimator: str = "gmc",
        noise: bool = True,
    ) -> TunedBound:
        """min over eta of 2 Delta / (eta T) + [L eta B^2] + C eta^p: Theorem 1 at its best constant step. Section 5.

        `noise=False` leaves the bracket out: the delay part alone, eta = (2 Delta / (p C T))^(1 / (p + 1)).
        The overlap radius is not imposed here: compare `steps` with `window`.
        """
        C, p = self.bias_coefficient(estimator, group_size, epsilon)
        slope = self.smoothness * self.gradient_bound(epsilon) ** 2 if noise else 0.0
        step = (2 * self.gap / (p * C * steps)) ** (1 / (p + 1))
        if noise:
            # eta * derivative = L B^2 eta + p C eta^p - 2 Delta / (eta T) increases in eta: bisect its sign
            low, high = -200.0, math.log(step)
            for _ in range(200):
                mid = 0.5 * (low + high)
                eta = math.exp(mid)
                rising = slope * eta + p * C * eta**p > 2 * self.gap / (eta * steps)
                low, high = (low, mid) if rising else (mid, high)
            step = math.exp(0.5 * (low + high))
        sgd, bias = 2 * self.gap / (step * steps) + slope * step, C * step**p
        return TunedBound(value=sgd + bias, step_size=step, sgd=sgd, delay_bias=bias)

    def group_size_slope(
        self, steps: Scalar, group_size: Scalar, epsilon: Scalar = 0.2, *, noise: bool = True
    ) -> float:
        """d log(tuned bound of GMC) / d log G = -2 x (share of C eta^4 in the bound), by the envelope theorem.

        -2/5 without noise, where the share is 1/5; tends to 0 as the noise takes over. Section 5.
        """
        best = self.tuned_bound(steps, group_size, epsilon, noise=noise)
        return -2 * best.delay_bias / best.value

    def closed_form_bound(
        self, steps: Scalar, group_size: Scalar, epsilon: Scalar = 0.2, *, estimator: str = "gmc"
    ) -> tuple[float, float]:
        """(eta, bound) with eta = min(eta_1, eta_2, rho_0 / (tau B)), written out in section 5:

        2 sqrt(2 Delta L B^2 / T) + 2 (2 Delta / T)^(p/(p+1)) C^(1/(p+1)) + 2 Delta tau B / (rho_0 T).
        """
        C, p = self.bias_coefficient(estimator, group_size, epsilon)
        B, start = self.gradient_bound(epsilon), 2 * self.gap / steps
        radius_step = self.overlap_radius / (self.delay * B)
        step = min((start / (self.smoothness * B**2)) ** 0.5, (start / C) ** (1 / (p + 1)), radius_step)
        bound = 2 * (start * self.smoothness * B**2) ** 0.5 + 2 * start ** (p / (p + 1)) * C ** (1 / (p + 1))
        return step, bound + start / radius_step

    def window(self, group_size: Scalar, epsilon: Scalar = 0.2) -> tuple[float, float]:
        """(T_lo, T*): the numbers of steps between which GMC's G^(-2/5) term leads; empty if T_lo >= T*. Section 5.

        T* = 2 Delta C^(2/3) (L B^2)^(-5/3), beyond it T^(-1/2) leads; T_lo = 2 Delta (tau B / rho_0)^5 / C, below it
        the tuned step leaves the region of overlap.
        """
        C, _ = self.bias_coefficient("gmc", group_size, epsilon)
        B = self.gradient_bound(epsilon)
        latest = 2 * self.gap * C ** (2 / 3) / (self.smoothness * B**2) ** (5 / 3)
        return 2 * self.gap * (self.delay * B / self.overlap_radius) ** 5 / C, latest

    def largest_visible_group(self, epsilon: Scalar = 0.2) -> float:
        """The G at which the window closes: G^2 = A^2 S^2 kappa^2 tau rho_0^3 / (16 eps^2 L B). Section 5."""
        constants = (self.advantage * self.score * self.overlap) ** 2 * self.delay * self.overlap_radius**3
        return (constants / (16 * epsilon**2 * self.smoothness * self.gradient_bound(epsilon))) ** 0.5
