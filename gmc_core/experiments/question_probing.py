"""Every question of a small task, sampled many times before and after a run: what training changed, one by one.

The rows lie in `<run folder>/probes/`, where those of `probing` lie too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gmc_core.experiments.probing import FOLDER
from gmc_core.files import write_atomically
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_policy
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import evaluate
from gmc_core.rollouts.tasks import Task
from gmc_core.training.loop import TrainingView
from gmc_core.training.run_config import RunConfig
from gmc_core.training.session import model_path


@dataclass(frozen=True)
class QuestionProbe:
    """`samples` responses to each of `task.prompts()`, by the initial policy and by the one after the last update.

    `seconds`: CPU time of both together, for planning.
    """

    samples: int
    seconds: float = 0.0

    def observer(self, run_folder: Path) -> Callable[[TrainingView], None]:
        """What `train(observe=...)` takes. The initial policy is read anew: a run is observed from update 1 on."""

        def observe(view: TrainingView) -> None:
            config = view.config
            if not (path := self._path(run_folder, 0)).exists():
                dtype = getattr(torch, config.dtype)
                model, revision = model_path(config.model), config.revision
                initial = load_policy(model, revision=revision, dtype=dtype, device=config.device)
                self._measure(path, 0, initial, view.task, config)
            if view.update == config.updates and not (path := self._path(run_folder, view.update)).exists():
                self._measure(path, view.update, view.policy, view.task, config)

        return observe

    def rows(self, run_folder: Path) -> list[dict[str, Any]]:
        """The rows of a finished run: update, question, answer, correct of samples. FileNotFoundError without them."""
        found = sorted((run_folder / FOLDER).glob("questions-*.json"))
        if len(found) != 2:
            raise FileNotFoundError(
                f"run {run_folder.name} is finished but has {len(found)} of its 2 measurements of the questions. "
                "Delete the run's folder and run the experiment again"
            )
        return [row for path in found for row in json.loads(path.read_text(encoding="utf-8"))]

    def _measure(self, path: Path, update: int, policy: Policy, task: Task, config: RunConfig) -> None:
        if not hasattr(task, "prompts"):
            raise ValueError(f"task {task.name!r} has no list of all its questions (prompts()); this probe needs one")
        prompts = task.prompts()
        result = evaluate(
            TransformersEngine(policy, encode=PromptEncoder(policy.tokenizer, config.chat, config.enable_thinking)),
            policy.tokenizer,
            task,
            prompts,
            generator=stream_generator(config.seed, "questions", update, config.device),
            samples=self.samples,
            temperature=config.temperature,
            max_new_tokens=config.response_limit,
        )
        correct_P = (result.rewards_PG > 0).sum(-1).tolist()
        rows = [
            {
                "update": update,
                "question": prompt.text,
                "answer": prompt.answer,
                "correct": correct,
                "samples": self.samples,
            }
            for prompt, correct in zip(prompts, correct_P, strict=True)
        ]
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, (json.dumps(rows) + "\n").encode())

    @staticmethod
    def _path(run_folder: Path, update: int) -> Path:
        return run_folder / FOLDER / f"questions-{update:05d}.json"
