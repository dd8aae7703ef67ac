"""Staleness schedules: which policy samples the batch that the learner is about to use.

`FixedDelay(delay)` is exact and reproducible: update t learns from rollouts of the policy as it was `delay` updates ago
(the initial policy while t < delay). It keeps a ring of `delay + 1` snapshots, so a delayed run differs from an
on-policy one in nothing but the age of the sampler. `BoundedStaleness` (bounded_staleness.py) is the live schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gmc_core.training.bounded_staleness import BoundedStaleness

__all__ = ["BoundedStaleness", "FixedDelay", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The weights of one policy version (the number of updates behind it)."""

    version: int
    weights: Mapping[str, Tensor]


class FixedDelay:
    """A ring of the last `delay + 1` policies; the oldest is the behaviour policy."""

    def __init__(self, delay: int) -> None:
        if not isinstance(delay, int) or delay < 0:
            raise ValueError(f"FixedDelay got delay={delay!r}; expected a number of updates, an integer of at least 0")
        self.delay = delay
        self._ring: deque[Snapshot] = deque(maxlen=delay + 1)

    def push(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Record the policy after update `version`; versions come in order, starting anywhere."""
        if self._ring and version != self._ring[-1].version + 1:
            raise ValueError(f"policy versions must follow each other; got {version} after {self._ring[-1].version}")
        self._ring.append(Snapshot(version, weights))

    @property
    def behavior(self) -> Snapshot:
        """The policy that samples the next batch: `delay` versions old, or the first one during start-up."""
        if not self._ring:
            raise RuntimeError(
                "FixedDelay holds no policy yet; push the initial one before asking for the behaviour policy"
            )
        return self._ring[0]

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Oldest first."""
        return tuple(self._ring)

    def state_dict(self) -> dict[str, Any]:
        """The ring, for a checkpoint."""
        return {"snapshots": [{"version": item.version, "weights": dict(item.weights)} for item in self.snapshots]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the ring of `state_dict`."""
        self._ring.clear()
        for item in state["snapshots"]:
            self.push(item["version"], item["weights"])
