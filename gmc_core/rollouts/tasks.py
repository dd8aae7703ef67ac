"""Verifiable tasks: where prompts come from and what a response is worth.

A task gives prompts from an explicit generator and a reward for a response text. The reward is 1.0 only for a
well-formed, finished, correct answer, else 0.0; a verifier never raises on what a model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from gmc_core.rollouts.datasets.registry import DATASETS


@dataclass(frozen=True)
class Prompt:
    """One question: its text as the model sees it, and the reference answer that the verifier compares with.

    `prefill` is the beginning of the response, given to the model: it is part of the prompt's tokens, not of what is
    sampled and trained on. Behind a chat template it is what the assistant has already said.
    """

    text: str
    answer: str
    prefill: str = ""


@runtime_checkable
class Task(Protocol):
    """What the loop needs of a task. `name` and the fields of the dataclass identify it in a run's config.

    A task may also have `sample_evaluation_prompts(count, generator)`, prompts that are never trained on, and
    `provenance()`, what a record keeps of its data; see `evaluation_prompts` and `data_provenance`.
    """

    name: str
    max_response_tokens: int

    def sample_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]: ...

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float: ...


@dataclass(frozen=True)
class RunningSums:
    """Add `digits` digits modulo 10, writing every running sum.

    Prompt `3+8+1=`, response `3>1>2#2` and end of sequence: the running sums modulo 10 separated by `>`, then `#` and
    the answer. The reward asks for the form, the end of sequence and the right answer; the sums on the way are not
    graded, so the task is one of credit assignment over a chain: an error on the way propagates to the answer.
    """

    digits: int = 6
    name: str = "running_sums"

    def __post_init__(self) -> None:
        if not isinstance(self.digits, int) or self.digits < 2:
            raise ValueError(f"RunningSums.digits is {self.digits!r}; expected an integer of at least 2")

    @property
    def max_response_tokens(self) -> int:
        """Tokens of a well-formed response: `digits` sums, `digits - 1` separators, #, the answer, end of sequence."""
        return 2 * self.digits + 2

    def prompt(self, digits: Sequence[int]) -> Prompt:
        return Prompt(text="+".join(map(str, digits)) + "=", answer=str(sum(digits) % 10))

    def sample_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        rows = torch.randint(0, 10, (count, self.digits), generator=generator).tolist()
        return [self.prompt(row) for row in rows]

    def solution(self, digits: Sequence[int], corruption: Sequence[int] | None = None) -> str:
        """The worked response for `digits`; `corruption[k]` is added to running sum k and carried on from there."""
        total, sums = 0, []
        for k, digit in enumerate(digits):
            total = (total + digit + (corruption[k] if corruption is not None else 0)) % 10
            sums.append(str(total))
        return ">".join(sums) + "#" + sums[-1]

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float:
        well_formed = re.fullmatch(rf"[0-9](?:>[0-9]){{{self.digits - 1}}}#[0-9]", response) is not None
        return float(finished and well_formed and response[-1] == prompt.answer)


@dataclass(frozen=True)
class Addition:
    """Add two numbers of `digits` digits, for models that were pretrained on text.

    Prompt `What is 3 + 8?` with the prefill `3 + 8 =`: a chat model answers behind its own beginning, a base model
    continues a text. With `require_finished` a response is right if it is the number and nothing else but space and a
    full stop, and was ended by the model; without it, if the number that it begins with is the answer, whatever
    follows.
    """

    digits: int = 1
    require_finished: bool = True
    name: str = "addition"

    def __post_init__(self) -> None:
        if not isinstance(self.digits, int) or isinstance(self.digits, bool) or not 1 <= self.digits <= 3:
            raise ValueError(f"Addition.digits is {self.digits!r}; expected 1, 2 or 3")

    @property
    def max_response_tokens(self) -> int:
        """A space, every digit of the answer as a token of its own, a full stop and the end of sequence."""
        return 1 + (self.digits + 1) + 2

    def prompt(self, first: int, second: int) -> Prompt:
        return Prompt(text=f"What is {first} + {second}?", answer=str(first + second), prefill=f"{first} + {second} =")

    def prompts(self) -> list[Prompt]:
        """Every question, in order: 100 of one digit, 10,000 of two."""
        numbers = range(10**self.digits)
        return [self.prompt(first, second) for first in numbers for second in numbers]

    def sample_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        rows = torch.randint(0, 10**self.digits, (count, 2), generator=generator).tolist()
        return [self.prompt(*row) for row in rows]

    def sample_evaluation_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        """`count` questions, all of them equally often as far as `count` allows; the same ones as in training."""
        total = 10**self.digits
        places: list[int] = []
        while len(places) < count:
            places += torch.randperm(total * total, generator=generator)[: count - len(places)].tolist()
        return [self.prompt(*divmod(place, total)) for place in places]

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float:
        if self.require_finished and not finished:
            return 0.0
        form = r"\s*([0-9]+)\.?\s*$" if self.require_finished else r"\s*([0-9]+)(?![0-9.,]*[0-9])"
        number = re.match(form, response)
        return float(number is not None and number[1] == prompt.answer)


def _dataset_task(name: str) -> Callable[..., Task]:
    def make(**options) -> Task:
        from gmc_core.rollouts.datasets.task import DatasetTask

        return DatasetTask(name, **options)

    return make


def _procedural_task(**options) -> Task:
    from gmc_core.rollouts.datasets.procedural import ProceduralTask

    return ProceduralTask(**options)


# What makes a task from its options; data sets come from their registry and are read when the first prompt is drawn.
TASKS: dict[str, Callable[..., Task]] = {
    "running_sums": RunningSums,
    "addition": Addition,
    "reasoning_gym": _procedural_task,
    **{name: _dataset_task(name) for name in DATASETS},
}


def make_task(name: str, **options) -> Task:
    """The task of that name. Raises ValueError for an unknown name, TypeError for an option it does not have."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")
    return TASKS[name](**options)


def evaluation_prompts(task: Task, count: int, generator: torch.Generator) -> list[Prompt]:
    """Up to `count` prompts to evaluate on: held-out ones where the task has them, else as in training."""
    return getattr(task, "sample_evaluation_prompts", task.sample_prompts)(count, generator)


def data_provenance(task: Task) -> dict[str, object] | None:
    """Origin and version of the task's data, for the run record; None for a task without data."""
    return task.provenance() if hasattr(task, "provenance") else None
