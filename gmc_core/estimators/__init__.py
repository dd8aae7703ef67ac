"""Pure tensor mathematics of the estimators: torch only, no device, config, logging or I/O."""

from gmc_core.estimators.advantages import group_advantages
from gmc_core.estimators.diagnostics import METRICS, Metric, group_diagnostics
from gmc_core.estimators.estimator import Estimator
from gmc_core.estimators.importance_ratios import counted_rollouts, token_log_ratio, trajectory_log_ratio
from gmc_core.estimators.losses import loss_normalizer, policy_gradient_loss
from gmc_core.estimators.weights import ESTIMATORS, make_estimator
from gmc_core.estimators.weights_group import (
    effective_sample_size,
    gmc_weights,
    group_mass,
    log_group_mass,
    mixture_weights,
    self_normalized_weights,
    water_filling_weights,
)
from gmc_core.estimators.weights_token import (
    cispo_weights,
    icepop_weights,
    m2po_weights,
    ppo_clip_weights,
    token_tis_weights,
)
from gmc_core.estimators.weights_trajectory import (
    gepo_weights,
    gspo_weights,
    is_weights,
    seq_mis_weights,
    tic_weights,
    topr_weights,
    uncorrected_weights,
    vespo_weights,
)

__all__ = [
    "ESTIMATORS",
    "METRICS",
    "Estimator",
    "Metric",
    "cispo_weights",
    "counted_rollouts",
    "effective_sample_size",
    "gepo_weights",
    "gmc_weights",
    "group_advantages",
    "group_diagnostics",
    "group_mass",
    "gspo_weights",
    "icepop_weights",
    "is_weights",
    "log_group_mass",
    "loss_normalizer",
    "m2po_weights",
    "make_estimator",
    "mixture_weights",
    "policy_gradient_loss",
    "ppo_clip_weights",
    "self_normalized_weights",
    "seq_mis_weights",
    "tic_weights",
    "token_log_ratio",
    "token_tis_weights",
    "topr_weights",
    "trajectory_log_ratio",
    "uncorrected_weights",
    "vespo_weights",
    "water_filling_weights",
]
