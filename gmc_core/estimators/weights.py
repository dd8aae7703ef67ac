"""The menu of estimators: one frozen dataclass per rule, found by name in `ESTIMATORS`.

Every estimator is a rule for a detached weight w_it; the policy gradient is always
    g = mean over prompts of (1/G) sum_i A_i sum_t w_it grad log pi(y_it | ...)     (times the normaliser of the loss),
so one loss serves them all (`losses.policy_gradient_loss`). The formulas and sources are in the docstrings of the
functions (`weights_group`, `weights_trajectory`, `weights_token`); a dataclass holds a rule's options, checks them on
construction, and applies the rule to the log-probabilities of a whole optimiser step.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, as_mask, check_choice, check_shape, check_tensor
from gmc_core.estimators.importance_ratios import counted_rollouts, masked_logp, token_log_ratio
from gmc_core.estimators.weights_group import (
    check_alpha,
    check_epsilon,
    gmc_weights,
    mixture_weights,
    self_normalized_weights,
    water_filling_weights,
)
from gmc_core.estimators.weights_token import (
    check_range,
    check_threshold,
    cispo_weights,
    icepop_weights,
    m2po_weights,
    ppo_clip_weights,
    token_tis_weights,
)
from gmc_core.estimators.weights_trajectory import (
    check_cap,
    check_clip,
    check_gamma,
    gepo_weights,
    gspo_weights,
    is_weights,
    seq_mis_weights,
    tic_weights,
    topr_weights,
    uncorrected_weights,
    vespo_weights,
)
from gmc_core.typing import Float, Int, Shaped


@dataclass(frozen=True)
class StepRatios:
    """What a rule may look at: the ratios of a whole optimiser step. Shapes (..., T) per token, (...) per rollout."""

    token_log_ratio: Tensor  # 0 at masked tokens, NaN at tokens without a ratio
    log_ratio: Tensor  # of the trajectory; NaN for poisoned rollouts
    mask: Tensor
    length: Tensor  # response tokens
    logp_current: Tensor  # as given: mask before use
    logp_behavior: Tensor
    advantage: Tensor
    valid: Tensor  # rollouts that take part in their group
    group_index: Tensor | None

    @classmethod
    def of(
        cls,
        logp_current: Tensor,
        logp_behavior: Tensor,
        mask: Tensor,
        advantage: Tensor,
        valid: Tensor | None,
        group_index: Tensor | None,
    ) -> "StepRatios":
        """Log-ratios of the step, with rollouts left out that have no response token or no finite ratio."""
        token = token_log_ratio(logp_current, logp_behavior, mask)
        mask = as_mask("mask", mask)
        length = mask.sum(-1)
        log_ratio = torch.where(length > 0, token.sum(-1), torch.nan)
        counted = counted_rollouts(log_ratio, valid)
        return cls(token, log_ratio, mask, length, logp_current, logp_behavior, advantage, counted, group_index)

    @property
    def usable_tokens(self) -> Tensor:
        """Response tokens of the rollouts that count."""
        return self.mask & self.valid.unsqueeze(-1)

    def mean_logp(self, logp: Tensor) -> Tensor:
        """Mean log-probability over the response tokens: the log of their geometric mean."""
        total = masked_logp(logp, self.mask, self.log_ratio.dtype).sum(-1)
        return total / self.length.clamp_min(1)


@dataclass(frozen=True)
class Estimator:
    """A rule for the weights. Subclasses set `name`, `level` and `_weight`; add your own to `ESTIMATORS`."""

    name: ClassVar[str]
    level: ClassVar[str] = "trajectory"  # or "token": whether the weight differs between the tokens of a rollout
    normalizer: ClassVar[str | None] = None  # the loss normaliser that the rule's derivation assumes, if any

    def __call__(
        self,
        logp_current_PGT: Float[Tensor, "..."],
        logp_behavior_PGT: Float[Tensor, "..."],
        mask_PGT: Shaped[Tensor, "..."],
        advantage_PG: Float[Tensor, "..."],
        valid_PG: Shaped[Tensor, "..."] | None = None,
        *,
        group_index: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """The weights of a step.

        Args:
            logp_current_PGT, logp_behavior_PGT: token log-probabilities (P, G, T), nats.
            mask_PGT: response tokens. advantage_PG: (P, G). valid_PG: rollouts that take part, all by default.
            group_index: for flat rollouts (N, T) with advantage and valid (N,): integer labels (N,) in any order.
        Returns:
            weight_PGT (or (N, T)), detached, float32 (float64 for float64 input); 0 at masked tokens, and for rollouts
            that are invalid, without response tokens, or poisoned by a non-finite log-probability.
        Raises:
            ValueError, TypeError: shapes or dtypes that do not fit together.
        """
        check_tensor("logp_current_PGT", logp_current_PGT, floating=True)
        if logp_current_PGT.dim() < 2:
            raise ValueError(
                f"logp_current_PGT has shape {tuple(logp_current_PGT.shape)}; expected (P, G, T), or (N, T) with "
                "group_index: the token dimension comes last."
            )
        rollouts = logp_current_PGT.shape[:-1]
        check_shape("advantage_PG", advantage_PG, rollouts, "one advantage per rollout, the shape of logp without T")
        if valid_PG is not None:
            check_shape("valid_PG", valid_PG, rollouts, "one entry per rollout, the shape of logp without T")
        with torch.no_grad():
            step = StepRatios.of(logp_current_PGT, logp_behavior_PGT, mask_PGT, advantage_PG, valid_PG, group_index)
            weight = self._weight(step)
            if weight.dim() < step.mask.dim():
                weight = weight.unsqueeze(-1)
            return torch.where(step.usable_tokens, weight, 0.0)

    def _weight(self, step: StepRatios) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _weight")


@dataclass(frozen=True)
class Uncorrected(Estimator):
    """`uncorrected_weights`."""

    name: ClassVar[str] = "uncorrected"

    def _weight(self, step: StepRatios) -> Tensor:
        return uncorrected_weights(step.log_ratio, valid=step.valid)


@dataclass(frozen=True)
class ImportanceSampling(Estimator):
    """`is_weights`."""

    name: ClassVar[str] = "is"

    def _weight(self, step: StepRatios) -> Tensor:
        return is_weights(step.log_ratio, valid=step.valid)


@dataclass(frozen=True)
class SelfNormalized(Estimator):
    """`self_normalized_weights`."""

    name: ClassVar[str] = "snis"

    def _weight(self, step: StepRatios) -> Tensor:
        return self_normalized_weights(step.log_ratio, group_index=step.group_index, valid=step.valid)


@dataclass(frozen=True)
class GroupMassCapping(Estimator):
    """`gmc_weights`: the paper's estimator."""

    name: ClassVar[str] = "gmc"
    epsilon: Number = 0.2

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def _weight(self, step: StepRatios) -> Tensor:
        return gmc_weights(step.log_ratio, self.epsilon, group_index=step.group_index, valid=step.valid)


@dataclass(frozen=True)
class TicMask(Estimator):
    """`tic_weights`, variant "mask"."""

    name: ClassVar[str] = "tic_mask"
    epsilon: Number = 0.2

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def _weight(self, step: StepRatios) -> Tensor:
        return tic_weights(step.log_ratio, self.epsilon, variant="mask", valid=step.valid)


@dataclass(frozen=True)
class TicTruncate(Estimator):
    """`tic_weights`, variant "truncate"."""

    name: ClassVar[str] = "tic_truncate"
    epsilon: Number = 0.2

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def _weight(self, step: StepRatios) -> Tensor:
        return tic_weights(step.log_ratio, self.epsilon, variant="truncate", valid=step.valid)


@dataclass(frozen=True)
class WaterFilling(Estimator):
    """`water_filling_weights`."""

    name: ClassVar[str] = "water_filling"
    epsilon: Number = 0.2

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def _weight(self, step: StepRatios) -> Tensor:
        return water_filling_weights(step.log_ratio, self.epsilon, group_index=step.group_index, valid=step.valid)


@dataclass(frozen=True)
class Gspo(Estimator):
    """`gspo_weights`."""

    name: ClassVar[str] = "gspo"
    normalizer: ClassVar[str | None] = "sequence_mean_token_mean"
    low: Number = 3e-4
    high: Number = 4e-4

    def __post_init__(self) -> None:
        check_clip(self.low, self.high)

    def _weight(self, step: StepRatios) -> Tensor:
        return gspo_weights(step.log_ratio, step.length, step.advantage, self.low, self.high, valid=step.valid)


@dataclass(frozen=True)
class Topr(Estimator):
    """`topr_weights`."""

    name: ClassVar[str] = "topr"

    def _weight(self, step: StepRatios) -> Tensor:
        return topr_weights(step.log_ratio, step.advantage, valid=step.valid)


@dataclass(frozen=True)
class Gepo(Estimator):
    """`gepo_weights`."""

    name: ClassVar[str] = "gepo"
    normalizer: ClassVar[str | None] = "sequence_mean_token_mean"
    low: Number = 0.2
    high: Number = 0.2

    def __post_init__(self) -> None:
        check_clip(self.low, self.high)

    def _weight(self, step: StepRatios) -> Tensor:
        return gepo_weights(
            step.mean_logp(step.logp_current),
            step.mean_logp(step.logp_behavior),
            step.advantage,
            self.low,
            self.high,
            group_index=step.group_index,
            valid=step.valid,
        )


@dataclass(frozen=True)
class SequenceMaskedIS(Estimator):
    """`seq_mis_weights`."""

    name: ClassVar[str] = "seq_mis"
    cap: Number = 2.0

    def __post_init__(self) -> None:
        check_cap(self.cap)

    def _weight(self, step: StepRatios) -> Tensor:
        return seq_mis_weights(step.log_ratio, self.cap, valid=step.valid)


@dataclass(frozen=True)
class PpoClip(Estimator):
    """`ppo_clip_weights`: GRPO with 0.2 / 0.2, DAPO with 0.2 / 0.28."""

    name: ClassVar[str] = "ppo_clip"
    level: ClassVar[str] = "token"
    low: Number = 0.2
    high: Number = 0.2

    def __post_init__(self) -> None:
        check_clip(self.low, self.high)

    def _weight(self, step: StepRatios) -> Tensor:
        return ppo_clip_weights(step.token_log_ratio, step.advantage, step.usable_tokens, self.low, self.high)


@dataclass(frozen=True)
class Cispo(Estimator):
    """`cispo_weights`."""

    name: ClassVar[str] = "cispo"
    level: ClassVar[str] = "token"
    low: Number = 1.0
    high: Number = 0.2

    def __post_init__(self) -> None:
        check_clip(self.low, self.high)

    def _weight(self, step: StepRatios) -> Tensor:
        return cispo_weights(step.token_log_ratio, step.usable_tokens, self.low, self.high)


@dataclass(frozen=True)
class TokenTruncatedIS(Estimator):
    """`token_tis_weights`."""

    name: ClassVar[str] = "token_tis"
    level: ClassVar[str] = "token"
    cap: Number = 2.0

    def __post_init__(self) -> None:
        check_cap(self.cap)

    def _weight(self, step: StepRatios) -> Tensor:
        return token_tis_weights(step.token_log_ratio, step.usable_tokens, self.cap)


@dataclass(frozen=True)
class IcePop(Estimator):
    """`icepop_weights`."""

    name: ClassVar[str] = "icepop"
    level: ClassVar[str] = "token"
    low: Number = 0.5
    high: Number = 5.0

    def __post_init__(self) -> None:
        check_range(self.low, self.high)

    def _weight(self, step: StepRatios) -> Tensor:
        return icepop_weights(step.token_log_ratio, step.usable_tokens, self.low, self.high)


@dataclass(frozen=True)
class M2po(Estimator):
    """`m2po_weights`: the second moment is bounded over the tokens of the whole step."""

    name: ClassVar[str] = "m2po"
    level: ClassVar[str] = "token"
    threshold: Number = 0.04

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def _weight(self, step: StepRatios) -> Tensor:
        return m2po_weights(step.token_log_ratio, step.advantage, step.usable_tokens, self.threshold)


@dataclass(frozen=True)
class Vespo(Estimator):
    """`vespo_weights`."""

    name: ClassVar[str] = "vespo"
    k_positive: Number = 2.0
    lambda_positive: Number = 3.0
    k_negative: Number = 3.0
    lambda_negative: Number = 2.0

    def __post_init__(self) -> None:
        check_gamma(self.k_positive, self.lambda_positive, self.k_negative, self.lambda_negative)

    def _weight(self, step: StepRatios) -> Tensor:
        return vespo_weights(
            step.log_ratio,
            step.advantage,
            self.k_positive,
            self.lambda_positive,
            self.k_negative,
            self.lambda_negative,
            valid=step.valid,
        )


@dataclass(frozen=True)
class Mixture(Estimator):
    """`mixture_weights`: ours, not the paper's."""

    name: ClassVar[str] = "mixture"
    alpha: Number = 0.2
    epsilon: Number = 0.2

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_epsilon(self.epsilon)

    def _weight(self, step: StepRatios) -> Tensor:
        return mixture_weights(step.log_ratio, self.alpha, self.epsilon, group_index=step.group_index, valid=step.valid)


ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind
    for kind in (
        Uncorrected,
        ImportanceSampling,
        SelfNormalized,
        GroupMassCapping,
        TicMask,
        TicTruncate,
        WaterFilling,
        Gspo,
        Topr,
        Gepo,
        SequenceMaskedIS,
        PpoClip,
        Cispo,
        TokenTruncatedIS,
        IcePop,
        M2po,
        Vespo,
        Mixture,
    )
}


def make_estimator(name: str, **options: object) -> Estimator:
    """The estimator `name` of the menu with its options, e.g. make_estimator("gmc", epsilon=0.2).

    Raises ValueError for an unknown name or an option out of range, TypeError for an option the rule does not have;
    both list what is known.
    """
    kind = ESTIMATORS[check_choice("estimator", name, ESTIMATORS)]
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            accepted = ", ".join(known) if known else "none"
            raise TypeError(f"estimator {name!r} has no option {option!r}; it accepts: {accepted}.")
    return kind(**options)
