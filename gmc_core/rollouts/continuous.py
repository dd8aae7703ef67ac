"""Continuous generation: groups enter and leave while others are generated, and the policy may change in between.

`RolloutEngine.generate` (engine.py) is one call for one batch and one policy. The live schedule needs more: a generator
that is never idle, and rollouts that go on under the new policy when an update arrives in their middle. A
`ContinuousEngine` advances by small steps; between two steps its owner may add requests, abort them or replace the
weights. Every token keeps the version of the policy that sampled it and its log-prob under that policy, so a trajectory
ratio is right for rollouts of several versions as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group


class EngineLost(RuntimeError):
    """What ran the engine vanished (its process was killed, its machine is gone); a new engine may take over.

    Every other exception of an engine is taken for a fault that would occur again.
    """


@dataclass(frozen=True)
class GroupRequest:
    """`group_size` rollouts of one prompt.

    `ticket` names the group for life: it is issued once, and a request that is sent again after a worker died carries
    the same ticket and the same `seed`. `seed` determines the sampling of this group, whatever else is in flight (up to
    the batch-dependent rounding of the engine). `temperature` 0 is greedy decoding, for evaluation: the log-probs are
    then those of temperature 1.
    """

    ticket: int
    prompt: Prompt
    group_size: int
    max_new_tokens: int
    temperature: float
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("ticket", 0), ("group_size", 1), ("max_new_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"GroupRequest.{name} is {value!r}; expected an integer of at least {least}")
        if not self.temperature >= 0:
            raise ValueError(f"GroupRequest.temperature is {self.temperature!r}; expected a number of at least 0")


@runtime_checkable
class ContinuousEngine(Protocol):
    """What a rollout worker needs of an engine. One thread uses it at a time.

    `tokens_sampled` counts every token since the engine was built, those of aborted groups included. A step raises
    `EngineLost` when another engine could go on.
    """

    policy_version: int
    tokens_sampled: int

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Tickets that were added and neither returned nor aborted, oldest first."""
        ...

    def add(self, request: GroupRequest) -> None:
        """Start this group at the next step. ValueError for a ticket that is in flight."""
        ...

    def step(self) -> list[tuple[int, Group]]:
        """Advance everything in flight by about a token; the groups that are now complete, with their tickets.

        A group comes whole or not at all. Empty when nothing is in flight.
        """
        ...

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget these groups; a ticket that is not in flight is ignored (it may just have finished)."""
        ...

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        """Sample from these weights from the next step on. Unfinished rollouts go on under them.

        Whatever was computed from the old weights is dropped: prefix cache and key/value cache are rebuilt. The tensors
        are copied; they may change or vanish after the call.
        """
        ...

    def score(self, prompt_tokens_L: Tensor, response_tokens_T: Tensor) -> Tensor:
        """(T,) fp32 log-probs, in nats and at temperature 1, of a response under the current policy.

        It is what the probe after a weight update compares with the learner's.
        """
        ...

    def close(self) -> None:
        """Release the engine's memory and processes."""
        ...


def generate_groups(engine: ContinuousEngine, requests: Iterable[GroupRequest]) -> list[Group]:
    """Run these requests to their end, in the order given. The engine must have nothing else in flight."""
    requests = list(requests)
    if engine.in_flight:
        raise RuntimeError(f"generate_groups needs an idle engine; tickets {engine.in_flight[:5]} are in flight")
    for request in requests:
        engine.add(request)
    done: dict[int, Group] = {}
    while engine.in_flight:
        done.update(engine.step())
    return [done[request.ticket] for request in requests]
