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

from torch import Tensor

from gmc_core.estimators.checks import Number, check_choice
from gmc_core.estimators.estimator import Estimator, StepRatios
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
