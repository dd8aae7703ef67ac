"""The smallest experiment: does every part run?"""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, staleness_grid
from gmc_core.training.run_config import RunConfig

SMOKE = Experiment(
    name="smoke",
    version=1,
    question="Does every part run?",
    protocol="Protocol: smoke. Tiny runs that show that every part works; their numbers mean nothing.\n",
    runs=staleness_grid(
        ("gmc", "tic_truncate", "uncorrected"),
        (0, 2),
        (0,),
        RunConfig(updates=4, evaluation_every=2, evaluation_prompts=16, prompts_per_update=2, group_size=4),
    ),
)
