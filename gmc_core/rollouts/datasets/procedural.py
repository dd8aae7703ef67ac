"""Tasks of reasoning-gym: questions made by a seeded program, graded by its own scorer, full score required.

Two traps of its scorers are closed here: they give partial credit to verbose answers, and some read the first number
of an answer only. The answer is taken out of the response first, counts only with a full score, and must be a number
where the reference is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from gmc_core.rollouts.datasets.templates import fill, find_template
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.verifiers.answers import find_answer
from gmc_core.rollouts.verifiers.costs import costly_arithmetic
from gmc_core.rollouts.verifiers.numbers import parse_number

TEMPLATE = "{question}\nThink step by step, then give only the final answer between <answer> and </answer>."
LONGEST_ANSWER = 2_000  # characters, or four times the reference if that is longer


@dataclass(frozen=True)
class ProceduralTask:
    """Questions of the reasoning-gym generator `generator`, made with `options`.

    Question number i is a function of (generator, options, seed, i): `questions` of them are for training, the next
    `evaluation_questions` for evaluation. A small space of questions repeats, so the two can coincide. A prompt's
    `answer` is JSON with the number of the question and the reference answer (null where the generator has many).
    Raises ValueError for an unknown generator or option, ImportError if reasoning-gym is missing; both when the first
    prompt is drawn.
    """

    generator: str = "chain_sum"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    questions: int = 10_000
    evaluation_questions: int = 1_000
    template: str = TEMPLATE
    max_response_tokens: int = 512
    require_finished: bool = True
    name: str = "reasoning_gym"

    def __post_init__(self) -> None:
        find_template(self.template)
        for name in ("questions", "evaluation_questions", "max_response_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"task reasoning_gym: {name} is {value!r}; expected an integer of at least 1")
        if taken := {"seed", "size"} & set(self.options):
            raise ValueError(f"task reasoning_gym: {sorted(taken)[0]} is not an option; use the field of the task")
        object.__setattr__(self, "options", dict(self.options))

    def sample_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        """`count` questions, each drawn independently from the first `questions`."""
        return [
            self._prompt(index) for index in torch.randint(0, self.questions, (count,), generator=generator).tolist()
        ]

    def sample_evaluation_prompts(self, count: int, generator: torch.Generator) -> list[Prompt]:
        """`count` different questions behind the training ones, or all of them if there are fewer."""
        order = torch.randperm(self.evaluation_questions, generator=generator).tolist()
        return [self._prompt(self.questions + index) for index in order[:count]]

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float:
        """1.0 for a finished response whose answer gets the full score, else 0.0. Never raises on a response."""
        answer = find_answer(response)
        if answer is None or (not finished and self.require_finished):
            return 0.0
        reference = json.loads(prompt.answer)
        gold = reference["answer"]
        if len(answer.text) > max(LONGEST_ANSWER, 4 * len(gold or "")):
            return 0.0
        if answer.text != gold and costly_arithmetic(answer.text) is not None:
            return 0.0  # some scorers evaluate an expression
        if gold is not None and parse_number(gold) is not None and parse_number(answer.text) is None:
            return 0.0
        data, entry = self._data, self._entry(reference["index"])
        try:
            return float(data.score_answer(answer.text, entry) >= 1.0)
        except Exception:  # scorers evaluate and index what they are given
            return 0.0

    def provenance(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {"dataset": f"reasoning_gym/{self.generator}", "version": version("reasoning-gym"), "seed": self.seed}

    @property
    def _data(self) -> Any:
        size = self.questions + self.evaluation_questions
        return _dataset(self.generator, json.dumps(self.options, sort_keys=True), self.seed, size)

    def _entry(self, index: int) -> dict[str, Any]:
        size = self.questions + self.evaluation_questions
        return _entry(self.generator, json.dumps(self.options, sort_keys=True), self.seed, size, index)

    def _prompt(self, index: int) -> Prompt:
        entry = self._entry(index)
        reference = {"index": index, "answer": entry["answer"]}
        return Prompt(text=fill(self.template, entry["question"]), answer=json.dumps(reference))


@lru_cache(maxsize=8)
def _dataset(generator: str, options: str, seed: int, size: int) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError(
            "task reasoning_gym needs reasoning-gym (which compiles pycosat, so a C compiler too): "
            "pip install -e '.[procedural]'"
        ) from error
    from reasoning_gym.factory import DATASETS

    if generator not in DATASETS:
        raise ValueError(f"reasoning-gym has no generator {generator!r}; it has {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(generator, seed=seed, size=size, **json.loads(options))
    except (TypeError, AssertionError) as error:
        raise ValueError(f"reasoning-gym refuses the options {options} of {generator}: {error}") from error


@lru_cache(maxsize=4096)
def _entry(generator: str, options: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """Question number `index`; a group asks for it once per rollout."""
    return _dataset(generator, options, seed, size)[index]
