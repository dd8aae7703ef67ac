"""GMC-GRPO companion (arXiv 2610.01896): estimators for stale rollouts, and the experiments that measure them.

The public names; their docstrings give formulas and shapes. Importing this package needs torch alone.
"""

from gmc_core.estimators import (
    ESTIMATORS,
    METRICS,
    Estimator,
    counted_rollouts,
    effective_sample_size,
    gmc_weights,
    group_advantages,
    group_diagnostics,
    group_mass,
    log_group_mass,
    loss_normalizer,
    make_estimator,
    mixture_weights,
    policy_gradient_loss,
    self_normalized_weights,
    tic_weights,
    token_log_ratio,
    trajectory_log_ratio,
    water_filling_weights,
)
from gmc_core.reporting.run_records import load_runs
from gmc_core.rollouts.scoring import evaluate
from gmc_core.training.loop import train
from gmc_core.training.run_config import RunConfig

__all__ = [
    "ESTIMATORS",
    "METRICS",
    "Estimator",
    "RunConfig",
    "counted_rollouts",
    "effective_sample_size",
    "evaluate",
    "gmc_weights",
    "group_advantages",
    "group_diagnostics",
    "group_mass",
    "load_runs",
    "log_group_mass",
    "loss_normalizer",
    "make_estimator",
    "mixture_weights",
    "policy_gradient_loss",
    "self_normalized_weights",
    "tic_weights",
    "token_log_ratio",
    "train",
    "trajectory_log_ratio",
    "water_filling_weights",
]
