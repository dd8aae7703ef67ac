"""Staleness schedules: which policy samples the batch that the learner is about to use.

`FixedDelay(delay)` is exact and reproducible: update t learns from rollouts of the policy as it was `delay` updates ago
(the initial policy while t < delay). It keeps a ring of `delay + 1` snapshots, so a delayed run differs from an
on-policy one in nothing but the age of the sampler. With `updates_per_batch` B it samples for B updates at once, as
many trainers do, and the age of the rollouts runs from `delay` to `delay + B - 1`. `BoundedStaleness`
(bounded_staleness.py) is the live schedule.
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
    """A ring of the last `delay + updates_per_batch` policies, one of which is the behaviour policy."""

    def __init__(self, delay: int, updates_per_batch: int = 1) -> None:
        if not isinstance(delay, int) or delay < 0:
            raise ValueError(f"FixedDelay got delay={delay!r}; expected a number of updates, an integer of at least 0")
        if not isinstance(updates_per_batch, int) or updates_per_batch < 1:
            raise ValueError(f"FixedDelay got updates_per_batch={updates_per_batch!r}; expected an integer above 0")
        self.delay, self.updates_per_batch = delay, updates_per_batch
        self._ring: deque[Snapshot] = deque(maxlen=delay + updates_per_batch)

    def push(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Record the policy after update `version`; versions come in order, starting anywhere."""
        if self._ring and version != self._ring[-1].version + 1:
            raise ValueError(f"policy versions must follow each other; got {version} after {self._ring[-1].version}")
        self._ring.append(Snapshot(version, weights))

    @property
    def behavior(self) -> Snapshot:
        """The policy that samples for the next update: `delay` updates older than the first update of its batch, or the
        first policy during start-up."""
        if not self._ring:
            raise RuntimeError(
                "FixedDelay holds no policy yet; push the initial one before asking for the behaviour policy"
            )
        newest = self._ring[-1].version
        wanted = newest - newest % self.updates_per_batch - self.delay
        return self._ring[max(0, wanted - self._ring[0].version)]

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
