"""From the log-probs of a whole step to the coefficients of its gradient, as a RunConfig asks."""

from __future__ import annotations

from torch import Tensor

from gmc_core.estimators import (
    Estimator,
    counted_rollouts,
    group_advantages,
    loss_normalizer,
    make_estimator,
    trajectory_log_ratio,
)
from gmc_core.estimators.variants import match_group_mean, undetached_cap_advantages
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.run_config import RunConfig


class Weighting:
    """The estimator of a config with its advantages, normaliser and variants (`rescale_to`, `detached`)."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.estimator = make_estimator(config.estimator, **config.estimator_options)
        self.epsilon = getattr(self.estimator, "epsilon", 0.2)
        self.reference = reference_estimator(config)

    def advantages(self, batch: Batch, valid_PG: Tensor) -> Tensor:
        """(P, G) group-relative advantages."""
        kind = self.config.advantage
        lengths = batch.mask_PGT.sum(-1) if kind == "length_corrected" else None
        return group_advantages(batch.reward_PG, normalization=kind, lengths=lengths, valid=valid_PG)

    def scales(self, batch: Batch, valid_PG: Tensor) -> Tensor:
        """(P, G) normaliser of the loss over the whole step."""
        config = self.config
        limit = config.response_limit if config.divides_by_length else None
        return loss_normalizer(config.normalizer, batch.mask_PGT, valid=valid_PG, max_length=limit)

    def weights(
        self, batch: Batch, logp_PGT: Tensor, advantage_PG: Tensor, scale_PG: Tensor, valid_PG: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights (P, G, T) and the advantages (P, G) that go with them into the loss; both need whole groups."""
        step = (logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT, advantage_PG, valid_PG)
        weight_PGT = self.estimator(*step)
        if self.reference is not None:
            weight_PGT = match_group_mean(weight_PGT, self.reference(*step), batch.mask_PGT)
        if not self.config.detached:
            log_ratio_PG = trajectory_log_ratio(*step[:3])
            advantage_PG = undetached_cap_advantages(advantage_PG, log_ratio_PG, scale_PG, self.epsilon, valid=valid_PG)
        return weight_PGT, advantage_PG


def usable_rollouts(batch: Batch) -> Tensor:
    """(P, G): rollouts with a usable behaviour log-prob on every token; others must not sway a group's mean."""
    self_ratio_PG = trajectory_log_ratio(batch.behavior_logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT)
    return counted_rollouts(self_ratio_PG, batch.valid_PG)


def reference_estimator(config: RunConfig) -> Estimator | None:
    """The rule whose group means `rescale_to` takes, at its defaults, but with this run's epsilon if it has one."""
    if config.rescale_to is None:
        return None
    reference = make_estimator(config.rescale_to)
    epsilon = config.estimator_options.get("epsilon")
    if epsilon is not None and hasattr(reference, "epsilon"):
        reference = make_estimator(config.rescale_to, epsilon=epsilon)
    return reference
