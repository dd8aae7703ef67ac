"""`train(config)`: the whole loop, from a config to a finished record."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.provenance import git_state, lock_hash, machine, package_versions
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_policy, snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import evaluate, score_groups
from gmc_core.rollouts.tasks import Task, make_task
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.learner import Learner
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import CHECKPOINT, DamagedRecordError, RunDirectory, RunRecord
from gmc_core.training.staleness import FixedDelay, Snapshot

EVALUATION_SEED = 0  # the evaluation prompts are the same for every run


@dataclass(frozen=True)
class TrainingView:
    """What an observer of a run sees after an update: to be read, not changed."""

    config: RunConfig
    update: int  # the one just taken, from 1
    policy: Policy  # after it
    behavior: Snapshot  # the policy that will sample the next batch
    task: Task


def train(
    config: RunConfig,
    *,
    root: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_update: Callable[[dict[str, float]], None] | None = None,
    observe: Callable[[TrainingView], None] | None = None,
) -> RunRecord:
    """Run `config` to its end and return its record; reuse a finished record, resume an interrupted one exactly.

    `root` holds the run folders (default `build/runs/adhoc`). A checkpoint is written whenever `checkpoint_seconds`
    have passed since the last; an interruption costs at most that much work, and a resumed run writes the same bytes to
    metrics.jsonl and evaluations.jsonl as an uninterrupted one. `on_update` receives the metrics of each update,
    `observe` a view of the policy behind it; neither changes the record, but for its seconds. After an interruption
    both see the updates since the last checkpoint again.

    Raises RunClaimedError if another process is on this run, FileNotFoundError if the model is missing.
    """

    def load() -> Policy:
        return load_policy(_model_path(config.model), dtype=getattr(torch, config.dtype), device=config.device)

    policy = load()
    directory = RunDirectory(root or paths.BUILD_RUNS / "adhoc", config, policy.fingerprint)
    with directory.claim():
        try:
            if directory.finished:
                return directory.read()
            directory.open()
            return _Run(config, policy, directory, checkpoint_seconds, on_update, observe).finish()
        except DamagedRecordError as error:
            directory.set_aside(str(error))
            directory.open()
            return _Run(config, load(), directory, checkpoint_seconds, on_update, observe).finish()


def _model_path(model: str) -> str | Path:
    """A path inside the checkout, if there is one of that name; else a hub name or an absolute path as given."""
    local = paths.ROOT / model
    return local if local.exists() else model


class _Run:
    """The state of one run between updates."""

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        directory: RunDirectory,
        checkpoint_seconds: float,
        on_update: Callable[[dict[str, float]], None] | None,
        observe: Callable[[TrainingView], None] | None,
    ) -> None:
        self.config, self.policy, self.directory = config, policy, directory
        self.checkpoint_seconds, self.on_update = checkpoint_seconds, on_update or (lambda row: None)
        self.observe = observe or (lambda view: None)
        self.task = make_task(config.task, **config.task_options)
        self.learner = Learner(policy, config)
        self.schedule = FixedDelay(config.delay)
        sampler = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.eos_ids, policy.fingerprint)
        self.engine = TransformersEngine(sampler)
        self.evaluation_engine = TransformersEngine(policy)
        self.evaluation_prompts = self.task.sample_prompts(
            config.evaluation_prompts, stream_generator(EVALUATION_SEED, "evaluation prompts")
        )
        self.sources = git_state()  # when the run starts: commits made meanwhile are not what it ran
        self.done = 0  # updates behind us
        self.seconds = {"wall": 0.0, "cpu": 0.0}  # of earlier, interrupted sessions

    def finish(self) -> RunRecord:
        self.started = (time.perf_counter(), time.process_time())
        self._resume_or_begin()
        last_checkpoint = time.perf_counter()
        for _ in _progress(range(self.done, self.config.updates), self.config.run_id):
            row = self._update()
            self.directory.append("metrics.jsonl", row)
            self.on_update(row)
            self.observe(TrainingView(self.config, self.done, self.policy, self.schedule.behavior, self.task))
            if self.done % self.config.evaluation_every == 0 or self.done == self.config.updates:
                self._evaluate()
            if time.perf_counter() - last_checkpoint >= self.checkpoint_seconds and self.done < self.config.updates:
                self._checkpoint()
                last_checkpoint = time.perf_counter()
        self._save_policy()
        evaluations = self.directory.rows("evaluations.jsonl")
        self.directory.finish(summarize(evaluations), self._provenance())
        return self.directory.read()

    def _resume_or_begin(self) -> None:
        checkpoint = self.directory.path / CHECKPOINT
        if checkpoint.exists():
            state = load_checkpoint(
                checkpoint,
                fingerprint=self.policy.fingerprint,
                digest=self.config.digest,
                device=self.policy.device,
            )
            self.learner.load_state_dict(state["learner"])
            self.schedule.load_state_dict(state["schedule"])
            self.done, self.seconds = state["update"], state["seconds"]
            self.directory.rewind(self.done)
            return
        self.schedule.push(0, snapshot(self.policy.model))
        self.directory.rewind(-1)
        self._evaluate()

    def _update(self) -> dict[str, float]:
        config, behavior = self.config, self.schedule.behavior
        prompts = self.task.sample_prompts(
            config.prompts_per_update, stream_generator(config.seed, "prompts", self.done)
        )
        if self.engine.policy_version != behavior.version:
            self.engine.update_weights(behavior.weights, behavior.version)
        groups = self.engine.generate(
            prompts,
            group_size=config.group_size,
            max_new_tokens=config.response_limit,
            temperature=config.temperature,
            generator=stream_generator(config.seed, "rollouts", self.done, config.device),
        )
        groups = score_groups(groups, self.task, self.policy.tokenizer)
        batch = Batch.from_groups(groups, group_size=config.group_size, mask_truncated=config.mask_truncated)
        row: dict[str, float] = {
            "update": self.done + 1,
            "policy_version": self.done,
            "behavior_version": behavior.version,
            "staleness": self.done - behavior.version,
            "reward_mean": batch.reward_PG.mean().item(),
            "response_length": batch.mask_PGT.sum(-1).float().mean().item(),
            "truncated_fraction": 1.0 - batch.finished_PG.float().mean().item(),
            "tokens": int(batch.mask_PGT.sum()),
        }
        row |= self.learner.update(batch)
        self.done += 1
        self.schedule.push(self.done, snapshot(self.policy.model))
        return row

    def _evaluate(self) -> None:
        result = evaluate(
            self.evaluation_engine,
            self.policy.tokenizer,
            self.task,
            self.evaluation_prompts,
            generator=stream_generator(self.config.seed, "evaluation", self.done, self.config.device),
            temperature=self.config.temperature,
            max_new_tokens=self.config.response_limit,
        )
        self.directory.append(
            "evaluations.jsonl",
            {
                "update": self.done,
                "accuracy": result.accuracy,
                "response_length": result.response_length,
                "truncated_fraction": result.truncated_fraction,
            },
        )

    def _elapsed(self) -> dict[str, float]:
        return {
            "wall": self.seconds["wall"] + time.perf_counter() - self.started[0],
            "cpu": self.seconds["cpu"] + time.process_time() - self.started[1],
        }

    def _checkpoint(self) -> None:
        save_checkpoint(
            self.directory.path / CHECKPOINT,
            {
                "update": self.done,
                "seconds": self._elapsed(),
                "learner": self.learner.state_dict(),
                "schedule": self.schedule.state_dict(),
            },
            fingerprint=self.policy.fingerprint,
            digest=self.config.digest,
        )

    def _save_policy(self) -> None:
        from safetensors.torch import save

        weights = {name: tensor.contiguous() for name, tensor in snapshot(self.policy.model).items()}
        write_atomically(self.directory.path / "policy.safetensors", save(weights))

    def _provenance(self) -> dict[str, Any]:
        return {
            **self.sources,
            "lock": lock_hash(),
            "versions": package_versions(("torch", "transformers", "tokenizers", "safetensors")),
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "seed": self.config.seed,
            "model_fingerprint": self.policy.fingerprint,
            "seconds": self._elapsed(),
        }


def summarize(evaluations: list[dict[str, float]]) -> dict[str, float]:
    """What a run comes to, from its evaluations; the one before training is kept out of the averages.

    `area_under_curve` is the mean accuracy over the evaluations, `collapsed` is 1 when the final accuracy is below
    half of the best, the one before training included: a run that is at 0 ever after has collapsed.
    """
    accuracy = [row["accuracy"] for row in evaluations if row["update"] > 0]
    return {
        "initial_accuracy": evaluations[0]["accuracy"],
        "final_accuracy": accuracy[-1],
        "best_accuracy": max(accuracy),
        "area_under_curve": sum(accuracy) / len(accuracy),
        "collapsed": float(accuracy[-1] < 0.5 * max(row["accuracy"] for row in evaluations)),
    }


def _progress(updates: range, label: str):
    """A bar in a terminal; nothing when headless, where metrics.jsonl has a line per update."""
    if not sys.stderr.isatty():
        return updates
    from tqdm import tqdm

    return tqdm(updates, desc=label, initial=updates.start, total=updates.stop)
