"""A data set as a task: prompts drawn from an explicit generator, rewards from its verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from gmc_core.rollouts.datasets.loading import Loaded, Question, find_spec, load_questions
from gmc_core.rollouts.datasets.quality import overlap, split_by_question
from gmc_core.rollouts.datasets.registry import BENCHMARK
from gmc_core.rollouts.datasets.templates import fill, find_template
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.verifiers import math_verdict, number_verdict
from gmc_core.rollouts.verifiers.expressions import require_math_verify

HELD_OUT = 0.05  # share of a training set that is evaluated on and never trained on


@dataclass(frozen=True)
class DatasetTask:
    """Data set `name` of the registry as a task.

    `path`: a local file with the same columns instead of the hub. `split`, `revision`: other than the registry's.
    `template`: see templates.py. `held_out`: share of the questions, chosen by a hash of their text, that
    `sample_evaluation_prompts` draws from and `sample_prompts` never does (default: 0.05 of a training set, nothing of
    a benchmark, where both draw from all). `exclude`: benchmarks by name, with a path or None for the hub; training
    questions that overlap with them are left out. `require_finished=False` also rewards a right answer in a response
    that the length limit cut off behind it.

    Reading happens at the first prompt, not on construction. Raises ValueError for an unknown name, split, template or
    share; see `load_questions` for what reading raises.
    """

    name: str
    path: str | None = None
    split: str | None = None
    revision: str | None = None
    template: str = "boxed"
    held_out: float | int | None = None
    exclude: Mapping[str, str | None] = field(default_factory=dict)
    max_response_tokens: int = 0
    require_finished: bool = True

    def __post_init__(self) -> None:
        spec = find_spec(self.name)
        find_template(self.template)
        for name in ("path", "split", "revision"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"task {self.name}: {name} is {value!r}; expected a string or None")
        if self.path is None and self.split is not None and self.split not in spec.splits:
            raise ValueError(f"task {self.name}: no split {self.split!r}; it has {', '.join(spec.splits)}")
        if self.path is not None and (self.split is not None or self.revision is not None):
            raise ValueError(f"task {self.name}: a local file has no split and no revision; give path alone")
        for benchmark in self.exclude:
            find_spec(benchmark)
        if self.held_out is None:
            object.__setattr__(self, "held_out", 0.0 if spec.role == BENCHMARK else HELD_OUT)
        if not isinstance(self.held_out, (int, float)) or not 0 <= self.held_out < 1:
            raise ValueError(f"task {self.name}: held_out is {self.held_out!r}; expected a number from 0 to below 1")
        limit = self.max_response_tokens
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise ValueError(
                f"task {self.name}: max_response_tokens is {limit!r}; expected an integer, 0 for the usual"
            )
        if limit == 0:
            object.__setattr__(self, "max_response_tokens", spec.max_response_tokens)
        object.__setattr__(self, "exclude", dict(self.exclude))

    # --- the Task protocol ---

    def sample_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        """`count` different training questions (each once more, in a new order, when there are fewer)."""
        return self._draw(self._parts.training, count, generator)

    def sample_evaluation_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        """`count` different held-out questions, or all of them if there are fewer."""
        questions = self._parts.held_out or self._parts.training
        return self._draw(questions, min(count, len(questions)), generator)

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float:
        """1.0 for a finished response with the right answer, else 0.0. Never raises on a response.

        It has no time-out of its own: run it in a worker process where one is needed.
        """
        if not finished and self.require_finished:
            return 0.0
        verdict = number_verdict if find_spec(self.name).verifier == "number" else math_verdict
        return float(verdict(prompt.answer, response))

    # --- what evaluation and records need beside it ---

    def prompts(self) -> list[Prompt]:
        """Every question in the order of the data set: what a benchmark is evaluated on."""
        return [self._prompt(question) for question in self.loaded.questions]

    @property
    def loaded(self) -> Loaded:
        """The questions read, with the report of what was left out. ImportError if their verifier cannot run."""
        self._check_verifier()
        return load_questions(self.name, self.path, self.split, self.revision)

    def provenance(self) -> dict[str, Any]:
        """What a run record keeps of its data: origin, the version that was read, and the counts."""
        loaded, parts = self.loaded, self._parts
        return {
            "dataset": self.name,
            "origin": loaded.origin,
            "version": loaded.version,
            "rows": loaded.rows,
            "filtered": loaded.filtered,
            "left_out": loaded.counts,
            "training": len(parts.training),
            "held_out": len(parts.held_out),
            "overlapping": {name: count for name, count in parts.overlapping},
        }

    @property
    def _parts(self) -> _Parts:
        self._check_verifier()
        exclude = tuple(sorted(self.exclude.items()))
        return _divide(self.name, self.path, self.split, self.revision, self.held_out, exclude)

    def _check_verifier(self) -> None:
        if find_spec(self.name).verifier == "math":
            require_math_verify()

    def _prompt(self, question: Question) -> Prompt:
        return Prompt(text=fill(self.template, question.text), answer=question.answer)

    def _draw(self, questions: tuple[Question, ...], count: int, generator: torch.Generator) -> list[Prompt]:
        order: list[int] = []
        while len(order) < count:
            order += torch.randperm(len(questions), generator=generator).tolist()
        return [self._prompt(questions[place]) for place in order[:count]]


@dataclass(frozen=True)
class _Parts:
    training: tuple[Question, ...]
    held_out: tuple[Question, ...]
    overlapping: tuple[tuple[str, int], ...]


@lru_cache(maxsize=8)
def _divide(
    name: str,
    path: str | None,
    split: str | None,
    revision: str | None,
    share: float | int,
    exclude: tuple[tuple[str, str | None], ...],
) -> _Parts:
    """The questions of a task: without those of the excluded benchmarks, divided into training and held-out ones."""
    questions = load_questions(name, path, split, revision).questions
    overlapping = []
    for benchmark, benchmark_path in exclude:
        texts = [question.text for question in load_questions(benchmark, benchmark_path).questions]
        found = set(overlap([question.text for question in questions], texts).contaminated)
        overlapping.append((benchmark, len(found)))
        questions = tuple(question for place, question in enumerate(questions) if place not in found)
    training, held_out = split_by_question([question.text for question in questions], share)
    if not training:
        raise ValueError(
            f"task {name}: no training question is left of {len(questions)} with held_out={share}; lower it"
        )
    return _Parts(
        training=tuple(questions[place] for place in training),
        held_out=tuple(questions[place] for place in held_out),
        overlapping=tuple(overlapping),
    )
