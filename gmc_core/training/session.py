"""What every schedule does around its updates: evaluate, keep the record, tell observers, finish with provenance."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.provenance import git_state, lock_hash, machine, package_versions
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.models import check_prompting
from gmc_core.rollouts.policy import Policy, snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import evaluate
from gmc_core.rollouts.tasks import Task, data_provenance, evaluation_prompts, make_task
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import RunDirectory, RunRecord
from gmc_core.training.staleness import Snapshot

EVALUATION_SEED = 0  # the evaluation prompts are the same for every run
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class TrainingView:
    """What an observer of a run sees after an update: to be read, not changed."""

    config: RunConfig
    update: int  # the one just taken, from 1
    policy: Policy  # after it
    behavior: Snapshot | None  # the policy that will sample the next batch; None in the live loop, which has several
    task: Task


class Session:
    """One run while this process works on it. `seconds` are those of earlier, interrupted sessions."""

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        directory: RunDirectory,
        *,
        checkpoint_seconds: float = 30.0,
        on_update: Callable[[dict[str, float]], None] | None = None,
        observe: Callable[[TrainingView], None] | None = None,
    ) -> None:
        self.config, self.policy, self.directory = config, policy, directory
        self.checkpoint_seconds = checkpoint_seconds
        self._on_update, self._observe = on_update, observe
        check_prompting(config.model, chat=config.chat)
        self.task = make_task(config.task, **config.task_options)
        self.engine = TransformersEngine(policy, encode=self.encoder())
        self.evaluation_prompts = evaluation_prompts(
            self.task, config.evaluation_prompts, stream_generator(EVALUATION_SEED, "evaluation prompts")
        )
        # When the run starts: commits made meanwhile are not what it ran. Tables of runs are no source of a run: those
        # that an earlier experiment of the same command has just written must not make this one "dirty".
        self._sources = git_state(without=["data/runs"])
        self.seconds = {"wall": 0.0, "cpu": 0.0}
        self._started = (time.perf_counter(), time.process_time())
        self._last_checkpoint = time.perf_counter()

    @property
    def model(self) -> str | Path:
        """Where the initial model lies."""
        return model_path(self.config.model)

    def encoder(self) -> PromptEncoder | None:
        """How prompts become tokens; None takes their text as it is."""
        config = self.config
        return PromptEncoder(self.policy.tokenizer, True, config.enable_thinking) if config.chat else None

    def updates(self, done: int) -> Iterable[int]:
        """The updates still to be taken, with a bar in a terminal; headless, metrics.jsonl has a line per update."""
        left = range(done, self.config.updates)
        if not sys.stderr.isatty():
            return left
        from tqdm import tqdm

        return tqdm(left, desc=self.config.run_id, initial=left.start, total=left.stop)

    def record(self, row: dict[str, float], behavior: Snapshot | None = None) -> None:
        """An update is behind us: its metrics go into the record and to the observers."""
        self.directory.append("metrics.jsonl", row)
        if self._on_update is not None:
            self._on_update(row)
        if self._observe is not None:
            self._observe(TrainingView(self.config, int(row["update"]), self.policy, behavior, self.task))

    def evaluation_due(self, done: int) -> bool:
        return done % self.config.evaluation_every == 0 or done == self.config.updates

    def evaluate(self, done: int, score: Callable[[Sequence[Group]], list[Group]] | None = None) -> None:
        """Sample the evaluation prompts with the learner's policy and append the result to the record.

        `score` gives the groups their rewards (default: the task's verifier, here and now).
        """
        result = evaluate(
            self.engine,
            self.policy.tokenizer,
            self.task,
            self.evaluation_prompts,
            generator=stream_generator(self.config.seed, "evaluation", done, self.config.device),
            temperature=self.config.temperature,
            max_new_tokens=self.config.response_limit,
            score=score,
        )
        self.directory.append(
            "evaluations.jsonl",
            {
                "update": done,
                "accuracy": result.accuracy,
                "response_length": result.response_length,
                "truncated_fraction": result.truncated_fraction,
            },
        )

    def checkpoint_due(self, done: int) -> bool:
        """Whether `checkpoint_seconds` have passed since the last one; there is none after the last update."""
        due = time.perf_counter() - self._last_checkpoint >= self.checkpoint_seconds
        return due and done < self.config.updates

    def checkpoint_written(self) -> None:
        self._last_checkpoint = time.perf_counter()

    def elapsed(self) -> dict[str, float]:
        """Wall and CPU seconds of this process and of earlier sessions."""
        return {
            "wall": self.seconds["wall"] + time.perf_counter() - self._started[0],
            "cpu": self.seconds["cpu"] + time.process_time() - self._started[1],
        }

    def finish(self, packages: tuple[str, ...] = (), **more: Any) -> RunRecord:
        """Write weights, summary and provenance (with `more` in it) and return the finished record."""
        from safetensors.torch import save

        weights = {name: tensor.contiguous() for name, tensor in snapshot(self.policy.model).items()}
        write_atomically(self.directory.path / "policy.safetensors", save(weights))
        provenance = {
            **self._sources,
            "lock": lock_hash(),
            "versions": package_versions((*PACKAGES, *packages)),
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "seed": self.config.seed,
            "model_fingerprint": self.policy.fingerprint,
            **({} if self.policy.revision is None else {"model_revision": self.policy.revision}),
            "seconds": self.elapsed(),
            **({} if (data := data_provenance(self.task)) is None else {"data": data}),
            **more,
        }
        self.directory.finish(summarize(self.directory.rows("evaluations.jsonl")), provenance)
        return self.directory.read()


def model_path(model: str) -> str | Path:
    """A path inside the checkout, if there is one of that name; else a hub name or an absolute path as given."""
    local = paths.ROOT / model
    return local if local.exists() else model


def batch_metrics(batch: Batch) -> dict[str, float]:
    """What a batch says before anything is learnt from it."""
    return {
        "reward_mean": batch.reward_PG.mean().item(),
        "response_length": batch.mask_PGT.sum(-1).float().mean().item(),
        "truncated_fraction": 1.0 - batch.finished_PG.float().mean().item(),
        "tokens": int(batch.mask_PGT.sum()),
    }


def summarize(evaluations: list[Mapping[str, float]]) -> dict[str, float]:
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
