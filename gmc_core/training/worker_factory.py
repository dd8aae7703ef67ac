"""Rollout workers and weight publishers by name: what `RunConfig.workers` chooses between.

A kind is two names to import: the worker class, made with (name, EngineSpec, events, in_flight_updates), and the
publisher of weights that goes with it. Nothing is imported before it is asked for, so a missing package is only missed
by who wants it.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Event, RolloutWorker, WeightSource

WORKERS = "gmc_core.rollouts.workers"
KINDS = {  # name -> (worker, publisher), as "module:class"
    "inline": (f"{WORKERS}.inline:InlineWorker", f"{__name__}:MemoryWeights"),
    "process": (f"{WORKERS}.process:ProcessWorker", f"{WORKERS}.weights:SharedMemoryWeights"),
    "ray": (f"{WORKERS}.ray_actor:RayWorker", f"{WORKERS}.ray_weights:RayWeights"),
}


class WeightPublisher(Protocol):
    """Makes the weights of a version available to workers until they are released."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> WeightSource: ...

    def release(self, version: int) -> None: ...

    def close(self) -> None: ...


class Workshop:
    """Makes the workers of a kind, and their publisher. Close it after them.

    `ray_address`: for kind "ray", where Ray runs (None: started here and stopped by `close`).
    Raises ValueError for an unknown kind, ImportError for a missing package.
    """

    def __init__(self, kind: str, ray_address: str | None = None) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of worker {kind!r}; choose one of {', '.join(KINDS)}")
        self._stop_ray = None
        if kind == "ray":
            try:
                from gmc_core.rollouts.workers.ray_runtime import start_ray, stop_ray
            except ImportError as error:
                raise ImportError(
                    f"workers='ray' needs Ray ({error}): pip install -e '.[notebooks,ray]', or use workers='process'"
                ) from error
            self._stop_ray = stop_ray if start_ray(ray_address) else None
        self._worker, publisher = map(_named, KINDS[kind])
        self.publisher: WeightPublisher = publisher()

    def worker(
        self, name: str, spec: EngineSpec, events: queue.SimpleQueue[Event], in_flight_updates: bool
    ) -> RolloutWorker:
        return self._worker(name, spec, events, in_flight_updates=in_flight_updates)

    def close(self) -> None:
        self.publisher.close()
        if self._stop_ray is not None:
            self._stop_ray()


@dataclass(frozen=True)
class HeldWeights:
    """`WeightSource` in this process."""

    weights: Mapping[str, Tensor]

    def load(self) -> Mapping[str, Tensor]:
        return self.weights


class MemoryWeights:
    """`WeightPublisher` for workers in this process: a copy of each version."""

    def __init__(self) -> None:
        self._sources: dict[int, HeldWeights] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """What is published and not released."""
        return tuple(self._sources)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> HeldWeights:
        if version not in self._sources:
            self._sources[version] = HeldWeights({name: tensor.detach().clone() for name, tensor in weights.items()})
        return self._sources[version]

    def release(self, version: int) -> None:
        self._sources.pop(version, None)

    def close(self) -> None:
        self._sources.clear()


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
