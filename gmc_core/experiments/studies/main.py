"""(a) The main comparison: the whole menu at every delay, each method at its own step size, on fresh seeds."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment, StepSizes
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import (
    BASE,
    CORE,
    DEFINITIONS,
    FRESH_SEEDS,
    REST,
    SETTING,
    STUDY_DELAY,
    TUNING_SEEDS,
    at_tuned,
    next_larger,
    with_estimator,
)
from gmc_core.training.run_config import RunConfig

DELAYS = (8, 16, 32, 64, 128)
# .025, .0354, .05, .0707, .1, .1414, .2: two steps lower than the grid of the mixture study, whose choices at delays 32
# and 64 lay at its lower end; what lies above the upper end is seen in the fresh runs at the next larger step size.
MAIN_STEP_SIZES = tuple(round(0.025 * 2 ** (k / 2), 4) for k in range(7))
# Without staleness every rule of the menu but gepo gives weight 1, so one method is tuned there for all of them.
ON_POLICY = ("uncorrected", "gepo")


def tuning_runs() -> tuple[RunConfig, ...]:
    first, second = TUNING_SEEDS
    cells = [(first, delay, name) for delay in DELAYS for name in CORE]
    cells += [(seed, STUDY_DELAY, name) for seed in (first, second) for name in REST]
    cells += [(seed, 0, name) for seed in (first, second) for name in ON_POLICY]
    return tuple(
        with_estimator(BASE, name, delay=delay, seed=seed, learning_rate=step_size)
        for seed, delay, name in cells
        for step_size in MAIN_STEP_SIZES
    )


def fresh_runs(step_sizes: StepSizes) -> tuple[RunConfig, ...]:
    runs = []
    for seed in FRESH_SEEDS:
        for delay, names in ((0, (*CORE, *REST)), *((delay, CORE) for delay in DELAYS), (STUDY_DELAY, REST)):
            for name in names:
                tuned = name if delay or name in ON_POLICY else ON_POLICY[0]
                step_size = at_tuned(BASE, tuned, step_sizes, delay=delay).learning_rate
                larger = [next_larger(step_size)] if delay or name in ON_POLICY else []
                runs += [
                    with_estimator(BASE, name, delay=delay, seed=seed, learning_rate=rate)
                    for rate in (step_size, *larger)
                ]
    return tuple(runs)


RULE = """\
- **The rule** (`gmc_core/reporting/step_sizes.py`): the score of a step size is the area under the curve, averaged over
  the tuning seeds, then smoothed with weights 1-2-1 over the neighbouring step sizes and, at positive delays, over the
  neighbouring tuned delays of the method. The highest smoothed score wins, of equal ones the smaller step size. The
  core menu has one tuning seed per cell, because more would not fit the time; its neighbours stand in for them.
- A choice at an end of the grid is marked as such wherever it is used.
- At delay 0 all rules of the menu but gepo give every rollout weight 1 (up to rounding): `uncorrected` is tuned for
  all.
"""

MAIN_TUNING = Experiment(
    name="main_tuning",
    version=1,
    question="Which step size does each method want at each delay?",
    protocol=fill(f"""\
# Protocol: main_tuning, version 1 (written 2026-11-30, before the runs)

Question: which step size does each method want at each delay? A weight's mean acts like a step size, so methods can
only be compared at step sizes of their own. These runs choose them, and nothing else is concluded from them but the
usable step-size range and the picture at one common step size.

{SETTING}\
- Step sizes, the same grid for every method: {", ".join(map(str, MAIN_STEP_SIZES))} (factors of sqrt 2). The grid was
  moved down by two steps, and .2828 left out, after `mixture_tuning` and before any run of this experiment: there the
  rule chose the lower end for GMC at delays 32 and 64, and runs at larger step sizes were lost at random.
- Core menu ({", ".join(CORE)}): delays {", ".join(map(str, DELAYS))}, tuning seed {TUNING_SEEDS[0]}.
- Rest of the menu ({", ".join(REST)}): delay {STUDY_DELAY}, tuning seeds {TUNING_SEEDS[0]} and {TUNING_SEEDS[1]}.
- Delay 0: {" and ".join(ON_POLICY)}, both tuning seeds.
{RULE}
{DEFINITIONS}"""),
    runs=tuning_runs(),
    keep_metrics=False,
)

MAIN = Experiment(
    name="main",
    version=1,
    question="At large delay, is GMC the best of the stable methods, each at its own step size?",
    protocol=fill(f"""\
# Protocol: main, version 1 (written 2026-11-30, before the runs)

Question: at large delay, is GMC the best of the stable methods, each at its own step size?

{SETTING}\
- Step sizes: for every method and delay the one that `main_tuning` chose, and the next larger one (factor sqrt 2),
  which shows what being slightly wrong costs. **The verdict is read at the chosen one.** A common step size is shown
  from the tuning runs beside it, never as the verdict.
{RULE}\
- Fresh seeds {", ".join(map(str, FRESH_SEEDS))}: none of them took part in tuning.
- Core menu ({", ".join(CORE)}): delays 0, {", ".join(map(str, DELAYS))}.
- Rest of the menu ({", ".join(REST)}): delays 0 and {STUDY_DELAY}.
- Delay 0 is run at the chosen step size alone (and the next larger one for {" and ".join(ON_POLICY)}): there the
  methods coincide up to rounding, and the runs show whether they do.
- Start-up: until update number *delay* all rollouts come from the initial policy. With 200 updates this is two thirds
  of a run at delay 128, a third at 64 and less below.
- Left out: delays other than 0 and {STUDY_DELAY} for the rest of the menu; other settings of the estimators' own
  options (epsilon: experiment `threshold`); other learners (experiment `optimizer`).

{DEFINITIONS}"""),
    runs=fresh_runs,
    tuning="main_tuning",
)
