"""The live loop: its clock at several bounds of the staleness, and curves of some rules in its deterministic mode."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.studies.common import with_estimator
from gmc_core.training.run_config import RunConfig

BOUNDS = (0, 1, 4, 16)
REFERENCE_STEP = RunConfig().learning_rate
TIMED = RunConfig(
    schedule="bounded_staleness",
    in_flight_updates=True,
    workers="process",
    engine="vllm",
    engine_options={"kv_cache_memory_bytes": 1 << 28},
    prompts_per_update=16,
    gradient_checkpointing=True,
    micro_batch_tokens=2048,
    learning_rate=REFERENCE_STEP / 4,
    updates=48,
    evaluation_every=48,
)

LIVE_TIMELINE = Experiment(
    name="live_timeline",
    version=1,
    question="What does the asynchronous loop do with its time, and how stale is what it learns from?",
    protocol=fill(f"""\
# Protocol: live_timeline, version 1 (written 2026-11-30, before the runs)

Question: what does the asynchronous loop do with its time, and how stale is what it learns from?

- A measurement of wall-clock time. The procedure can be repeated (`make experiments ONLY=live_timeline`), the seconds
  cannot: no byte of these tables is a function of the code. One run at a time, on two cores without other work: the
  learner in one process with one thread, one rollout worker in another with one, a verifier in a third.
- Four runs: gmc, seed 0, max_staleness k = {", ".join(map(str, BOUNDS))}; 0 is the synchronous loop, in which worker
  and learner take turns. The same prompts and the same tickets in all four. Updates in flight: a worker takes new
  weights between two decoding steps and goes on with its unfinished rollouts.
- Model: `data/tiny_qwen3` (0.45 M parameters), task `running_sums`. Engine: vLLM's CPU build.
- {TIMED.prompts_per_update} prompts x {TIMED.group_size} rollouts an update, {TIMED.updates} updates. The learner
  works as for a model of real size: micro-batches of {TIMED.micro_batch_tokens} tokens, hence two passes over a batch,
  and layers computed twice (gradient checkpointing). Chosen so that, by trial runs of the two halves, learning takes
  longer than generating at the start and no longer than it at the end: overlap gains much, and both regimes can show.
  SGD at step size {TIMED.learning_rate:g}, a quarter of the reference, so that the work of an update changes slowly
  while the clock runs (a group whose responses are all right, or all wrong, costs the learner less). The rest is the
  reference setting.
- Kept: every event of the timelines (times from the first token of a run, so that building the engine does not count),
  the metrics of every update, the ledgers. A run that was interrupted does not count. To measure again, delete
  `build/runs/live_timeline`.
- The pace (seconds an update, idle and waiting shares) leaves out the first 4 updates of a run and its last k, for
  which nothing is left to generate.
- One run for each k: these are timelines, not estimates, and no verdict rests on them.

Amended 2026-11-30, after the runs: what makes learning cheaper along a run is that the learner computes equal responses
to a prompt once, and that there are more and more of them; groups that are all right or all wrong stayed rare.
"""),
    runs=tuple(TIMED.replace(max_staleness=bound) for bound in BOUNDS),
    timed=True,
)

CURVES_BOUND = 16
CURVES_ESTIMATORS = ("gmc", "tic_truncate", "ppo_clip", "uncorrected")
CURVES_SEEDS = (0, 1, 2)
CURVES = RunConfig(
    schedule="bounded_staleness",
    max_staleness=CURVES_BOUND,
    workers="process",
    engine="transformers",
    learning_rate=REFERENCE_STEP / 2,
    updates=80,
    evaluation_every=8,
)

LIVE_CURVES = Experiment(
    name="live_curves",
    version=1,
    question="Does training work in the asynchronous loop, with a worker process that runs ahead?",
    protocol=fill(f"""\
# Protocol: live_curves, version 1 (written 2026-11-30, before the runs)

Question: does training work in the asynchronous loop, with a worker process that runs ahead?

- Runs: {", ".join(CURVES_ESTIMATORS)} x seeds {", ".join(map(str, CURVES_SEEDS))}, max_staleness k = {CURVES_BOUND},
  {CURVES.updates} updates. The same seed gives the same prompts to every estimator.
- The deterministic mode of the live loop: one worker process (engine: transformers) that takes weights and tickets
  strictly in order, so that every batch after the first {CURVES_BOUND} updates is exactly {CURVES_BOUND} updates old
  and the record is a function of the config, although learner and worker run side by side.
- Model: the committed warm start `data/tiny_qwen3`. Task: `running_sums`, six digits. SGD at step size
  {CURVES.learning_rate:g}, half of the reference, which is close to what this model can bear (`first_staleness`);
  it was not tuned for any rule. The rest is the reference setting: gradient norm clipped at {CURVES.gradient_clip:g},
  8 prompts x 16 rollouts an update, epsilon 0.2.
- Measured: accuracy of one sampled response to each of 256 fixed prompts, before training and every
  {CURVES.evaluation_every} updates. Shown seed by seed.
- Three seeds, one common step size, few updates: whether the loop trains, not which rule is better. The comparison of
  rules is `main`. Nothing is left out, collapsed runs included.
"""),
    runs=tuple(with_estimator(CURVES, name, seed=seed) for seed in CURVES_SEEDS for name in CURVES_ESTIMATORS),
)
