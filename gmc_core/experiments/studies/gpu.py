"""The GPU tiers as experiments: `make experiments ONLY=gpu_night`, on a machine that has the GPU. Not run here."""

from __future__ import annotations

from gmc_core.experiments.experiment import Experiment
from gmc_core.experiments.protocols import fill
from gmc_core.training.gpu_tiers import TIERS, Tier, estimate


def experiment(tier: Tier) -> Experiment:
    cost, base = estimate(tier), tier.base
    sweep = ""
    if tier.sweep:
        rates = ", ".join(f"{rate:g}" for rate in tier.sweep)
        sweep = (
            f" At the smallest and the largest delay every method also runs at {rates} (seed {tier.seeds[0]}), so that "
            "none is judged by a step size that is not its own."
        )
    benchmarks = ", ".join(f"{task} avg@{samples}" for task, samples in tier.benchmarks.items())
    after = f" After it: {benchmarks}, of at most {tier.benchmark_tokens} tokens." if benchmarks else ""
    return Experiment(
        name=tier.name,
        version=1,
        question=f"What does the age of the rollouts do to GRPO on {base.model}? ({tier.where})",
        protocol=fill(f"""\
# Protocol: {tier.name}, version 1 (written 2026-11-30, before the runs)

Question: what does the age of the rollouts do to GRPO on a Qwen3 checkpoint, and which weights repair it?

- Not run by this project, which had no GPU. `make experiments ONLY={tier.name}` runs it, one run at a time on the GPU
  that CUDA_VISIBLE_DEVICES names; as many of these as there are GPUs may work on it side by side.
- Hardware it was laid out for: {tier.where} ({tier.hardware}). Expected: {cost.runs} runs, {cost.hours:.2g} hours.
- Model {base.model} at its pinned revision, bf16 with an fp32 copy; task {base.task}, prompts as plain text, responses
  of at most {base.max_new_tokens} tokens.
- Methods {", ".join(tier.estimators)}; delays {", ".join(map(str, tier.delays))} updates, first in, first out; seeds
  {", ".join(map(str, tier.seeds))}; AdamW at {tier.learning_rate:g}.{sweep}
- {base.prompts_per_update} prompts x {base.group_size} rollouts an update, {base.updates} updates; temperature 1, no KL
  term, std-normalised advantages, gradient norm clipped at {base.gradient_clip:g}. A batch is sampled by one policy for
  {base.updates_per_batch} updates, each on prompts of its own: its rollouts are from the delay to the delay +
  {base.updates_per_batch - 1} updates old.
- Until the delay is over the initial policy samples, in every method alike.
- Measured: one response to each of {base.evaluation_prompts} held-out questions every {base.evaluation_every} updates;
  best and last accuracy, and the update at which a run falls below half of its best for good.{after}
- Nothing is left out, collapsed runs included.
"""),
        runs=tier.runs,
        extra="gpu",
    )


GPU_EXPERIMENTS = tuple(experiment(tier) for tier in TIERS.values())
