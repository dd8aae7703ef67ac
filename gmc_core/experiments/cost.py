"""CPU time that a run is expected to take, for planning: one quiet thread of a two-core machine.

Fitted by eye to runs of the reference setting. Sampling and learning cost more while the sampler's responses differ
(few rollouts of a group are the same): for an untrained sampler, that is until the delay is over and the policy has
learnt. Runs that never learn stay at the higher cost, so a whole grid may take half as much again.
"""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, placeholder
from gmc_core.experiments.question_probing import QuestionProbe
from gmc_core.experiments.snapshot_probing import SnapshotSchedule
from gmc_core.training.gpu_tiers import TIERS, estimate
from gmc_core.training.run_config import RunConfig

LEARNING = 50  # updates after the start-up until most responses of a group agree
FIXED = 0.03  # seconds an update that do not depend on its size: calls, Python
EARLY = 0.13  # more of them while responses differ, at 8 x 16 rollouts of 14 tokens
LATE = 0.04  # and once they agree
LIVE = 25.0  # seconds of the processes of a live run before its first token: imports, an engine, verifiers
PROBE = 20.0  # seconds of one fidelity probe and group size at its default plan and 14 estimators
ROLLOUT_TOKENS = 8 * 16 * 14


def run_seconds(config: RunConfig) -> float:
    """Estimated CPU seconds of one run at the tiny model."""
    tokens = config.prompts_per_update * config.group_size * config.response_limit
    early = min(config.updates, config.delay + LEARNING)
    size = tokens / ROLLOUT_TOKENS
    updates = config.updates * FIXED + size * (early * EARLY + (config.updates - early) * LATE)
    evaluations = config.updates / config.evaluation_every * 0.2 * config.evaluation_prompts / 256 * size**0.5
    return updates + evaluations + (LIVE if config.is_live and config.workers != "inline" else 0.0)


def experiment_seconds(experiment: Experiment) -> float:
    """Estimated CPU seconds of the whole experiment, none of it reused from another; a GPU tier's are of a GPU."""
    if experiment.name in TIERS:
        tier = TIERS[experiment.name]
        return 3600 * estimate(tier).hours * tier.gpus
    configs = experiment.configs_at(placeholder)
    total = sum(run_seconds(config) for config in configs)
    if isinstance(experiment.probe, SnapshotSchedule | QuestionProbe):
        total += len(configs) * experiment.probe.seconds
    elif experiment.probe is not None:
        sizes = len(experiment.probe.plan.group_sizes)
        total += len(configs) * len(experiment.probe.updates) * sizes * PROBE
    return total
