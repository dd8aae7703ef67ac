"""One run twice: by `gmc_core.train`, and by TRL on the same prompts, rollouts and policy of the same age."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gmc_core.integrations.trl_rollouts import DelayedRollouts
from gmc_core.integrations.trl_runs import trl_trainer
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import evaluate
from gmc_core.rollouts.tasks import evaluation_prompts, make_task
from gmc_core.training.loop import train
from gmc_core.training.run_config import RunConfig
from gmc_core.training.session import EVALUATION_SEED

SHARED = ("log_mass_mean", "weight_mean", "weight_max", "capped_fraction", "ess_fraction", "log_ratio_std")


@dataclass(frozen=True)
class Comparison:
    """What the two runs did.

    `updates`: a row per update with its number, the staleness on both sides, `difference`, the largest difference
    between a weight of ours and of TRL's after it, `change`, the largest change of a weight by it, and the metrics
    `SHARED` of both ("<name>" ours, "<name>_trl"; those of TRL only with an estimator there).
    `evaluations`: a row per evaluation with the accuracy on both sides.
    """

    config: RunConfig
    updates: list[dict[str, float]]
    evaluations: list[dict[str, float]]

    @property
    def largest_difference(self) -> float:
        return max(row["difference"] for row in self.updates)

    @property
    def largest_change(self) -> float:
        """Of a weight, by one update: what `largest_difference` is to be held against."""
        return max(row["change"] for row in self.updates)


def compare_with_trl(config: RunConfig, folder: Path) -> Comparison:
    """Run `config` by both and compare them after every update.

    The estimator "uncorrected" is TRL's own GRPOTrainer, any other one is GMCTrainer with that estimator; the rollouts
    of both come from `DelayedRollouts(config.delay)` on TRL's side. `folder` is where both may write; a finished run of
    ours in it is not used again. ValueError for a setting that TRL does not have.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is called experimental in TRL 1.16
    theirs, metrics, accuracies = _run_trl(config, folder / "trl")
    ours: list[Mapping[str, Tensor]] = [theirs[0]]  # both start from the same weights
    record = train(config, root=folder / "ours", observe=lambda view: ours.append(snapshot(view.policy.model)))
    if len(ours) != config.updates + 1:
        raise ValueError(f"{folder / 'ours'} holds this run already; give a new folder")
    rows = []
    for n, metric in enumerate(record.metrics):
        row = {
            "update": n + 1,
            "staleness": metric["staleness"],
            "staleness_trl": metrics[n]["staleness"],
            "difference": _largest(ours[n + 1], theirs[n + 1]),
            "change": _largest(ours[n + 1], ours[n]),
        }
        row |= {name: metric[name] for name in SHARED}
        row |= {f"{name}_trl": metrics[n][name] for name in SHARED if name in metrics[n]}
        rows.append(row)
    evaluations = [
        {"update": row["update"], "accuracy": row["accuracy"], "accuracy_trl": accuracies[int(row["update"])]}
        for row in record.evaluations
    ]
    return Comparison(config, rows, evaluations)


def _run_trl(config: RunConfig, folder: Path) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]], dict[int, float]]:
    """TRL's run: weights before and after every update, its metrics, and accuracy by update."""
    rollouts = DelayedRollouts(config.delay)
    options: dict[str, Any] = {}
    if config.estimator != "uncorrected":
        from gmc_core.integrations.trl import GMCTrainer

        options = {
            "trainer_class": GMCTrainer,
            "estimator": config.estimator,
            "estimator_options": config.estimator_options,
        }
    weights: list[dict[str, Tensor]] = []
    staleness: list[int] = []
    accuracies: dict[int, float] = {}

    def look() -> None:
        weights.append(snapshot(trainer.model))
        done = len(weights) - 1
        if done:
            staleness.append(rollouts.staleness)
        if done % config.evaluation_every == 0 or done == config.updates:
            accuracies[done] = _accuracy(config, trainer, done)

    trainer = trl_trainer(
        config,
        folder,
        after_update=look,
        rollout_func=rollouts,
        arguments={"logging_strategy": "steps", "logging_steps": 1},
        **options,
    )
    look()
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    metrics = [
        {name.removeprefix("estimator/"): value for name, value in entry.items()} | {"staleness": age}
        for entry, age in zip(logged, staleness, strict=True)
    ]
    return weights, metrics, accuracies


def _accuracy(config: RunConfig, trainer: Any, done: int) -> float:
    """As `gmc_core.train` evaluates: the same prompts and random numbers."""
    model, task = trainer.accelerator.unwrap_model(trainer.model), make_task(config.task, **config.task_options)
    policy = Policy(model, trainer.processing_class, tuple(trainer.eos_token_ids), fingerprint="")
    prompts = evaluation_prompts(
        task, config.evaluation_prompts, stream_generator(EVALUATION_SEED, "evaluation prompts")
    )
    training = model.training
    model.eval()
    result = evaluate(
        TransformersEngine(policy),
        policy.tokenizer,
        task,
        prompts,
        generator=stream_generator(config.seed, "evaluation", done, config.device),
        temperature=config.temperature,
        max_new_tokens=config.response_limit,
    )
    model.train(training)
    return result.accuracy


def _largest(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    return max((left[name] - right[name]).abs().max().item() for name in left)
