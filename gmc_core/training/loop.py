"""`train(config)`: the whole loop, from a config to a finished record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from gmc_core import paths
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_policy, snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.remembered import RememberingEngine, RolloutMemory
from gmc_core.rollouts.scoring import score_groups
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.learner import Learner
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import CHECKPOINT, DamagedRecordError, RunDirectory, RunRecord
from gmc_core.training.session import Session, TrainingView, batch_metrics, model_path, summarize
from gmc_core.training.staleness import FixedDelay

__all__ = ["TrainingView", "summarize", "train"]


def train(
    config: RunConfig,
    *,
    root: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_update: Callable[[dict[str, float]], None] | None = None,
    observe: Callable[[TrainingView], None] | None = None,
    memory: RolloutMemory | None = None,
) -> RunRecord:
    """Run `config` to its end and return its record; reuse a finished record, resume an interrupted one.

    `root` holds the run folders (default `build/runs/adhoc`). A checkpoint is written whenever `checkpoint_seconds`
    have passed since the last; an interruption costs at most that much work. When `config.is_deterministic`, a resumed
    run writes the same bytes to metrics.jsonl and evaluations.jsonl as an uninterrupted one; else it trains on every
    prompt that the checkpoint had issued, and on none twice. `on_update` receives the metrics of each update, `observe`
    a view of the policy behind it; neither changes the record, but for its seconds. After an interruption both see the
    updates since the last checkpoint again. `memory` is shared by runs of this process: those of fixed delay that begin
    alike then sample their initial policy once, with the same record as without it.

    Raises RunClaimedError if another process is on this run, FileNotFoundError if the model is missing, DiskFullError
    when the record cannot be written, RolloutFailure when the live loop cannot go on; what was computed stays.
    """
    if config.is_live:
        from gmc_core.training.live_loop import LiveRun as Run
    else:
        Run = partial(FixedDelayRun, memory=memory)

    def load() -> Policy:
        dtype = getattr(torch, config.dtype)
        return load_policy(model_path(config.model), revision=config.revision, dtype=dtype, device=config.device)

    policy = load()
    directory = RunDirectory(root or paths.BUILD_RUNS / "adhoc", config, policy.fingerprint)
    options = {"checkpoint_seconds": checkpoint_seconds, "on_update": on_update, "observe": observe}
    with directory.claim():
        try:
            if directory.finished:
                return directory.read()
            directory.open()
            return Run(Session(config, policy, directory, **options)).finish()
        except DamagedRecordError as error:
            directory.set_aside(str(error))
            directory.open()
            return Run(Session(config, load(), directory, **options)).finish()


class FixedDelayRun:
    """A run of schedule "fixed_delay": sampling and learning take turns, the sampler is a policy of fixed age."""

    def __init__(self, session: Session, memory: RolloutMemory | None = None) -> None:
        self.session, self.config, self.policy = session, session.config, session.policy
        self.learner = Learner(self.policy, self.config)
        self.schedule = FixedDelay(self.config.delay, self.config.updates_per_batch)
        sampler = Policy(
            copy.deepcopy(self.policy.model), self.policy.tokenizer, self.policy.eos_ids, self.policy.fingerprint
        )
        engine = TransformersEngine(sampler, encode=session.encoder())
        self.engine = engine if memory is None else RememberingEngine(engine, memory)
        self.checkpoint_path = session.directory.path / CHECKPOINT
        self.done = 0  # updates behind us

    def finish(self) -> RunRecord:
        session = self.session
        self._resume_or_begin()
        for _ in session.updates(self.done):
            row = self._update()
            session.record(row, self.schedule.behavior)
            if session.evaluation_due(self.done):
                session.evaluate(self.done)
            if session.checkpoint_due(self.done):
                self._checkpoint()
        return session.finish()

    def _resume_or_begin(self) -> None:
        if self.checkpoint_path.exists():
            state = load_checkpoint(
                self.checkpoint_path,
                fingerprint=self.policy.fingerprint,
                digest=self.config.digest,
                device=self.policy.device,
            )
            self.learner.load_state_dict(state["learner"])
            self.schedule.load_state_dict(state["schedule"])
            self.done, self.session.seconds = state["update"], state["seconds"]
            self.session.directory.rewind(self.done)
            return
        self.schedule.push(0, snapshot(self.policy.model))
        self.session.directory.rewind(-1)
        self.session.evaluate(0)

    def _update(self) -> dict[str, float]:
        config, behavior = self.config, self.schedule.behavior
        prompts = self.session.task.sample_prompts(
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
        groups = score_groups(groups, self.session.task, self.policy.tokenizer)
        batch = Batch.from_groups(groups, group_size=config.group_size, mask_truncated=config.mask_truncated)
        row: dict[str, float] = {
            "update": self.done + 1,
            "policy_version": self.done,
            "behavior_version": behavior.version,
            "staleness": self.done - behavior.version,
        }
        row |= batch_metrics(batch) | self.learner.update(batch)
        self.done += 1
        self.schedule.push(self.done, snapshot(self.policy.model))
        return row

    def _checkpoint(self) -> None:
        save_checkpoint(
            self.checkpoint_path,
            {
                "update": self.done,
                "seconds": self.session.elapsed(),
                "learner": self.learner.state_dict(),
                "schedule": self.schedule.state_dict(),
            },
            fingerprint=self.policy.fingerprint,
            digest=self.config.digest,
        )
        self.session.checkpoint_written()
