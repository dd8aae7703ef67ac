"""Why: bias, variance and direction of every estimator's gradient on the same stale rollouts along real runs."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.probing import ProbeSchedule
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import BASE, CORE, FRESH_SEEDS, at_tuned
from gmc_core.training.fidelity import ProbePlan
from gmc_core.training.run_config import RunConfig

DRIVERS = ("gmc", "tic_truncate")  # whose policies are looked at
DELAYS = (16, 64)
UPDATES = (16, 32, 64, 96, 128, 160, 192)
ESTIMATORS = {name: {"estimator": name} for name in (*CORE, "mixture")} | {
    "tic_truncate at the mean of gmc": {"estimator": "tic_truncate", "rescale_to": "gmc"},
    "tic_mask at the mean of gmc": {"estimator": "tic_mask", "rescale_to": "gmc"},
    "gmc (cap not detached)": {"estimator": "gmc", "detached": False},
}


def runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    return tuple(
        at_tuned(BASE, name, step_sizes, delay=delay, seed=seed)
        for seed in FRESH_SEEDS[:2]
        for delay in DELAYS
        for name in DRIVERS
    )


FIDELITY = Experiment(
    name="fidelity",
    version=1,
    question="How true to the fresh gradient is what each estimator makes of the same stale rollouts?",
    protocol=fill(f"""\
# Protocol: fidelity, version 1 (written 2026-11-30, before the runs)

Question: how true to the fresh gradient is what each estimator makes of the same stale rollouts?

- Runs: {" and ".join(DRIVERS)} at delays {" and ".join(map(str, DELAYS))}, seeds 10 and 11, setting and step sizes of
  `main`.
- Probes after updates {", ".join(map(str, UPDATES))}, on 4 sets of 8 prompts that are the same everywhere: 64 stale
  rollouts per prompt from the policy that the delay gives, cut into disjoint groups of 8, 16 and 32, and 256 fresh
  ones from the current policy.
- Compared with the mean gradient of the same update from fresh rollouts with weights 1, with the same advantages,
  normaliser and group size: what is called bias is the delay's doing alone.
- Squared norms and inner products are means over independent pairs of gradients, so the noise of neither side is
  counted as bias; standard errors are jackknifed over the sets of prompts.
- Estimators: {", ".join(ESTIMATORS)}. The rescaled and the undetached ones are ours, to take effects apart.
"""),
    runs=runs,
    tuning="main_tuning",
    probe=ProbeSchedule(UPDATES, ESTIMATORS, ProbePlan(group_sizes=(8, 16, 32))),
)
