"""Groups on their way from the workers to the learner, verified while the learner computes."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.scoring import response_texts
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.verification import VerifierPool
from gmc_core.rollouts.workers.messages import GroupDone
from gmc_core.training.run_config import RunConfig
from gmc_core.training.session import Session


class GroupIntake(queue.SimpleQueue):
    """The queue of a run's events, of workers and verifiers alike.

    A group that arrives is handed to the verifiers at once, by the thread that brings it: the learner may be in the
    middle of a long update, and rewards should be there when it ends. A failure of that is an event too.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        config: RunConfig = session.config
        self._tokenizer = session.policy.tokenizer
        self._verifiers = VerifierPool(session.task, config.verifier_processes, config.verifier_limit, results=self)

    def put(self, event: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(event)
        if isinstance(event, GroupDone):
            try:
                self.verify(event.ticket, event.group)
            except Exception as error:
                super().put(error)

    def verify(self, ticket: int, group: Group) -> None:
        texts = response_texts(self._tokenizer, group)
        self._verifiers.submit(ticket, group.prompt, texts, group.finished_G.tolist())

    def close(self) -> None:
        self._verifiers.close()


def lowest_versions(group: Group) -> list[int]:
    """The lowest policy version among the tokens of each rollout."""
    beyond = torch.iinfo(group.version_GT.dtype).max
    return torch.where(group.mask_GT, group.version_GT, beyond).amin(-1).tolist()


def mixed_fraction(groups: Iterable[Group]) -> float:
    """Share of rollouts that were sampled under more than one policy version."""
    mixed = []
    for group in groups:
        highest_G = torch.where(group.mask_GT, group.version_GT, -1).amax(-1).tolist()
        mixed += [low < high for low, high in zip(lowest_versions(group), highest_G, strict=True)]
    return sum(mixed) / len(mixed)


def with_rewards(group: Group, rewards: Iterable[float]) -> Group:
    return replace(group, reward_G=torch.tensor(list(rewards), dtype=torch.float32))


def moved(group: Group, device: torch.device) -> Group:
    """The group with its tensors on `device`."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return replace(group, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})


def to_tree(group: Group) -> dict[str, Any]:
    """What a checkpoint keeps of a group; its prompt follows from its ticket."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def from_tree(prompt: Prompt, tree: Mapping[str, Tensor]) -> Group:
    """The group that `to_tree` wrote, on the CPU."""
    return Group(prompt=prompt, **{name: tensor.cpu() for name, tensor in tree.items()})
