"""What an estimator is: a rule from the ratios of a whole optimiser step to detached weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gmc_core.estimators.checks import as_mask, check_shape, check_tensor
from gmc_core.estimators.importance_ratios import counted_rollouts, masked_logp, token_log_ratio
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
