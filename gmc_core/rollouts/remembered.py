"""Rollouts of an initial policy, sampled once for all runs of a process that begin alike.

Until update number *delay* a run of fixed delay learns from the policy that it started from. Whatever its estimator or
step size, a run with the same seed asks that policy for the same rollouts of the same prompts: in 200 updates a third
of all sampling at a delay of 64, two thirds at 128. Sampling is a function of policy, prompts and random numbers, so
what was sampled once serves every such run, bit by bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group

LARGEST = 256  # batches that are kept: two seeds at a delay of 128


class RolloutMemory:
    """Batches of groups by what determines them; of more than `largest` the one unused for longest is forgotten."""

    def __init__(self, largest: int = LARGEST) -> None:
        self.largest = largest
        self.hits = 0  # batches that did not have to be sampled
        self._kept: OrderedDict[Hashable, tuple[list[Group], Tensor]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[list[Group], Tensor] | None:
        """What was kept under `key`: the groups, and the state of the random generator after they were sampled."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        self.hits += 1
        groups, state = self._kept[key]
        return list(groups), state

    def keep(self, key: Hashable, groups: Sequence[Group], state: Tensor) -> None:
        self._kept[key] = list(groups), state
        if len(self._kept) > self.largest:
            self._kept.popitem(last=False)


class RememberingEngine:
    """A `TransformersEngine` that takes from `memory` what its initial policy (version 0) has been asked before."""

    def __init__(self, engine: TransformersEngine, memory: RolloutMemory) -> None:
        self.engine, self.memory = engine, memory

    @property
    def policy_version(self) -> int:
        return self.engine.policy_version

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        self.engine.update_weights(weights, policy_version)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[Group]:
        options = {"group_size": group_size, "max_new_tokens": max_new_tokens, "temperature": temperature}
        if self.policy_version != 0:
            return self.engine.generate(prompts, **options, generator=generator)
        key = (
            self.engine.policy.fingerprint,
            str(self.engine.policy.device),
            tuple(prompts),
            tuple(tuple(ids.tolist()) for ids in self.engine.tokenize(prompts)),
            tuple(options.values()),
            generator.get_state().numpy().tobytes(),
        )
        if (found := self.memory.get(key)) is not None:
            groups, state = found
            generator.set_state(state)
            return groups
        groups = self.engine.generate(prompts, **options, generator=generator)
        self.memory.keep(key, groups, generator.get_state())
        return groups
