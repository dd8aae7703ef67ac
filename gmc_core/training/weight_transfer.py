"""A fleet whose weights go through vLLM's own transfer: from the learner's GPU to the engines', past the driver.

Chosen by `engine_options={"weight_transfer": "ipc"}` (learner and engine on one GPU) or `"nccl"` (each on its own);
rollouts/vllm_transfer.py has the protocol. Every engine takes part in every round, so a round waits for all of them,
and an update cannot be loaded again later: there is no replay. The two transports need a GPU and were not run here;
what is around them is tested with a transport for the CPU.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Event, Failed, LoadWeights, Probe, Ready, RolloutWorker, WeightsLoaded
from gmc_core.training.fleet import Fleet, RolloutFailure
from gmc_core.training.group_intake import GroupIntake
from gmc_core.training.run_config import RunConfig

OPTION = "weight_transfer"  # of the vLLM engine


def make_fleet(
    config: RunConfig, spec: EngineSpec, request: Callable[[int], GroupRequest], events: GroupIntake, model: Any
) -> Fleet:
    """The fleet of a run. `model` is the learner's, whose weights a `TransferFleet` sends."""
    if OPTION in spec.options:
        return TransferFleet(config, spec, request, events, model)
    return Fleet(config, spec, request, events)


class TransferFleet(Fleet):
    """A `Fleet` without published weights. Nothing is generated before all workers are ready and connected."""

    def __init__(
        self,
        config: RunConfig,
        spec: EngineSpec,
        request: Callable[[int], GroupRequest],
        events: GroupIntake,
        model: Any,
    ) -> None:
        self._transfer = WeightTransfer(model, spec)
        self._newest_probe: Probe | None = None
        events.listener = self._transfer.heard
        super().__init__(config, spec, request, events)

    def publish(self, version: int, weights: Mapping[str, Tensor], probe: Probe | None) -> None:
        """Send the model's weights, as they are now, to all engines; later, if they are not all connected yet.

        Version 0 needs no sending: an engine has it from the model's files.
        """
        self.version, self._newest_probe = version, probe
        if self._transfer.connected and version > 0:
            with self._answers():
                self._transfer.send(version, probe)

    def ready(self, event: Ready) -> list[int]:
        self._ready.add(event.worker)
        if self._ready == self._workers.keys():
            with self._answers():
                self._transfer.connect(self._workers)
            self.publish(self.version, {}, self._newest_probe)
        return super().ready(event)

    def replace(self, event: Failed) -> list[int]:
        if self._transfer.backend == "nccl" and event.recoverable:
            raise RolloutFailure(f"{event.reason}\nThe engines form a group of NCCL, which cannot lose a member")
        self._transfer.disconnect()
        return super().replace(event)

    def close(self) -> None:
        super().close()
        self._transfer.disconnect()

    def _listening(self) -> list[str]:
        return sorted(self._ready) if self._transfer.connected else []

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except EngineGone:  # its Failed is among the events; all are connected again when its successor is ready
            self._transfer.disconnect()
        except TimeoutError as error:
            raise RolloutFailure(str(error)) from error


class EngineGone(RuntimeError):
    """An engine was lost in the middle of a round."""


class WeightTransfer:
    """The learner's end of the transfer, in terms of commands and events.

    `heard` must be told of every event by the thread that brings it, since `connect` and `send` wait for the workers'
    answers. Both raise EngineGone when a worker was lost meanwhile, TimeoutError when one does not answer.
    """

    def __init__(self, model: Any, spec: EngineSpec) -> None:
        self.backend = spec.options[OPTION]
        parallel = ("tensor_parallel_size", "pipeline_parallel_size")
        self._workers_per_engine = math.prod(int(spec.options.get(name, 1)) for name in parallel)
        self._model = model
        self._sender: Any | None = None
        self._probe: Probe | None = None
        self._versions: dict[str, int] = {}  # what each worker has now
        self._awaited: dict[str, deque[Future]] = {}  # answers, by worker
        self._lock = threading.Lock()

    @property
    def connected(self) -> bool:
        return self._sender is not None

    def connect(self, workers: Mapping[str, RolloutWorker]) -> None:
        """Introduce the learner to these workers, whose engines are built; again after one was replaced."""
        from gmc_core.rollouts.vllm_transfer import WeightSender

        self.disconnect()
        self._versions = {name: self._versions.get(name, 0) for name in workers}
        engines = [self._deliver_to(worker) for worker in workers.values()]
        self._sender = WeightSender(self._model, self.backend, engines, workers_per_engine=self._workers_per_engine)

    def send(self, version: int, probe: Probe | None) -> None:
        """Bring the model's weights, as they are now, into every engine as `version`."""
        self._probe = probe
        self._sender.send(version)

    def disconnect(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def heard(self, event: Event) -> None:
        if not isinstance(event, WeightsLoaded | Failed):
            return
        with self._lock:
            awaited = self._awaited.setdefault(event.worker, deque())
            if isinstance(event, WeightsLoaded):
                self._versions[event.worker] = event.version
                answered = [awaited.popleft()] if awaited else []
            else:
                self._versions.pop(event.worker, None)
                answered = [awaited.popleft() for _ in range(len(awaited))]
        for future in answered:
            if isinstance(event, WeightsLoaded):
                future.set_result(None)
            else:
                future.set_exception(EngineGone(event.reason))

    def _deliver_to(self, worker: RolloutWorker) -> Callable[[Any, int], Future]:
        def deliver(message: Any, version: int) -> Future:
            future: Future = Future()
            if message.connect is not None:  # brings no weights: the engine keeps the version it has
                version = self._versions[worker.name]
            with self._lock:
                self._awaited.setdefault(worker.name, deque()).append(future)
            worker.send(LoadWeights(version, message, self._probe if message.updates else None))
            while hasattr(worker, "pump") and not future.done() and worker.pump():
                pass  # a worker without a thread works here
            return future

        return deliver
