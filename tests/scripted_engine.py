"""A `ContinuousEngine` without a model: groups of a given length, and faults on demand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.trajectories import Group


class ScriptedEngine:
    """Every rollout of ticket t takes `max_new_tokens` steps, one token each. `spoil(group, request)` may break it.

    `log` notes what was called, in order: ("add", ticket), ("step", tickets), ("load", version), ("abort", tickets).
    """

    def __init__(self, spoil: Callable[[Group, GroupRequest], Group] | None = None) -> None:
        self.policy_version = 0
        self.tokens_sampled = 0
        self.closed = False
        self.log: list[tuple] = []
        self.spoil = spoil or (lambda group, request: group)
        self.running: dict[int, tuple[GroupRequest, list[int]]] = {}

    @property
    def in_flight(self):
        return tuple(self.running)

    def add(self, request):
        if request.ticket in self.running:
            raise ValueError(f"ticket {request.ticket} is in flight")
        self.log.append(("add", request.ticket))
        self.running[request.ticket] = (request, [])

    def step(self):
        self.log.append(("step", self.in_flight))
        done = []
        for ticket, (request, versions) in list(self.running.items()):
            versions.append(self.policy_version)
            self.tokens_sampled += request.group_size
            if len(versions) == request.max_new_tokens:
                del self.running[ticket]
                done.append((ticket, self.spoil(self.group(request, versions), request)))
        return done

    def group(self, request, versions):
        shape = (request.group_size, len(versions))
        return Group(
            prompt=request.prompt,
            prompt_tokens_L=torch.tensor([1, 2]),
            response_GT=torch.full(shape, 3),
            mask_GT=torch.ones(shape, dtype=torch.bool),
            behavior_logp_GT=torch.full(shape, -0.5),
            version_GT=torch.tensor(versions).expand(shape).clone(),
            finished_G=torch.ones(shape[0], dtype=torch.bool),
        )

    def abort(self, tickets):
        self.log.append(("abort", tuple(tickets)))
        for ticket in tickets:
            self.running.pop(ticket, None)

    def update_weights(self, weights, policy_version):
        self.log.append(("load", policy_version))
        self.policy_version = policy_version

    def score(self, prompt_tokens_L, response_tokens_T):
        return torch.full(response_tokens_T.shape, -0.5)

    def close(self):
        self.closed = True
