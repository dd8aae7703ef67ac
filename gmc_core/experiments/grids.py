"""Every experiment by name, in the order in which they can be run: one that needs another comes after it."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment
from gmc_core.experiments.studies.advantage import ADVANTAGE
from gmc_core.experiments.studies.fidelity import FIDELITY
from gmc_core.experiments.studies.first_staleness import FIRST_STALENESS
from gmc_core.experiments.studies.gpu import GPU_EXPERIMENTS
from gmc_core.experiments.studies.group_size import GROUP_SIZE
from gmc_core.experiments.studies.half_steps import HALF_STEPS
from gmc_core.experiments.studies.length import LENGTH
from gmc_core.experiments.studies.live import LIVE_CURVES, LIVE_TIMELINE
from gmc_core.experiments.studies.main import MAIN, MAIN_TUNING
from gmc_core.experiments.studies.mean_and_shape import MEAN_AND_SHAPE
from gmc_core.experiments.studies.mixture import MIXTURE, MIXTURE_TUNING
from gmc_core.experiments.studies.model_fidelity import MODEL_FIDELITY, MODEL_FIDELITY_SMOLLM2
from gmc_core.experiments.studies.optimizer import OPTIMIZER
from gmc_core.experiments.studies.smaller_steps import SMALLER_STEPS
from gmc_core.experiments.studies.smoke import SMOKE
from gmc_core.experiments.studies.smollm2_addition import SMOLLM2_ADDITION
from gmc_core.experiments.studies.starting_accuracy import STARTING_ACCURACY
from gmc_core.experiments.studies.threshold import THRESHOLD

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FIRST_STALENESS,
        MAIN_TUNING,
        MAIN,
        MEAN_AND_SHAPE,
        FIDELITY,
        OPTIMIZER,
        GROUP_SIZE,
        THRESHOLD,
        LENGTH,
        STARTING_ACCURACY,
        SMALLER_STEPS,
        HALF_STEPS,
        ADVANTAGE,
        MIXTURE_TUNING,
        MIXTURE,
        MODEL_FIDELITY,
        MODEL_FIDELITY_SMOLLM2,
        LIVE_CURVES,
        LIVE_TIMELINE,
        SMOLLM2_ADDITION,
        *GPU_EXPERIMENTS,
        SMOKE,
    )
}


def get_experiment(name: str) -> Experiment:
    """The experiment of that name. Raises ValueError naming the known ones."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; known experiments: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
