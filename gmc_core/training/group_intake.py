"""Groups on their way from the workers to the learner, verified while the learner computes."""

from __future__ import annotations

import queue
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.scoring import response_texts
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.verification import Verified, VerifierFault, VerifierPool
from gmc_core.rollouts.workers.messages import GroupDone
from gmc_core.training.fleet import RolloutFailure
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
        self.listener: Callable[[Any], None] | None = None  # hears every event at once, in the thread that brings it
        self._kept: deque[Any] = deque()  # events that came during an evaluation
        self._tokenizer = session.policy.tokenizer
        self._verifiers = VerifierPool(session.task, config.verifier_processes, config.verifier_limit, results=self)

    def put(self, event: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(event)
        if self.listener is not None:
            self.listener(event)
        if isinstance(event, GroupDone):
            try:
                self.verify(event.ticket, event.group)
            except Exception as error:
                super().put(error)

    def verify(self, ticket: int, group: Group) -> None:
        texts = response_texts(self._tokenizer, group)
        self._verifiers.submit(ticket, group.prompt, texts, group.finished_G.tolist())

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups of an evaluation with their rewards, from the same verifiers: a hang must not hold the learner.

        A group without rewards counts as answered wrongly, with a warning; RolloutFailure when there are many. Other
        events that come meanwhile are kept for whoever asks next.
        """
        for index, group in enumerate(groups):
            self.verify(-1 - index, group)  # no ticket is negative
        rewards: dict[int, Sequence[float]] = {}
        faults: list[VerifierFault] = []
        others: list[Any] = []
        while len(rewards) < len(groups):
            event = self.get()
            if not isinstance(event, Verified | VerifierFault) or event.ticket >= 0:
                others.append(event)
                continue
            index = -1 - event.ticket
            if isinstance(event, Verified):
                rewards[index] = event.rewards
                continue
            rewards[index] = [0.0] * groups[index].size
            faults.append(event)
            if event.kind == "unavailable" or len(faults) > max(8, len(groups) // 4):
                raise RolloutFailure(f"{len(faults)} evaluation answers could not be verified; {event.reason}")
        self._kept.extend(others)
        if faults:
            warnings.warn(
                f"{len(faults)} of {len(groups)} evaluation answers could not be verified and count as wrong; the "
                f"first: {faults[0].reason}",
                stacklevel=3,
            )
        return [with_rewards(group, rewards[index]) for index, group in enumerate(groups)]

    def empty(self) -> bool:
        return not self._kept and super().empty()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self._kept.popleft() if self._kept else super().get(block, timeout)

    def get_nowait(self) -> Any:
        return self.get(block=False)

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


def from_tree(prompt: Prompt, tree: Mapping[str, Tensor]) -> Group:
    """The group of a checkpoint, on the CPU: `Group.tensors` is what it keeps, the prompt follows from the ticket."""
    return Group(prompt=prompt, **{name: tensor.cpu() for name, tensor in tree.items()})
