"""A rollout worker in a Ray actor, on this machine or any node of a cluster.

The actor is never restarted by Ray itself: a new actor in the old one's place would have no engine state, no weights
and no tickets, and the driver's ledger would not know. It is lost with a `Failed(recoverable=True)` instead, and the
driver asks for a new one, which Ray places wherever there is room, and sends the lost tickets again.

On GPUs (not run here) an actor holds as many as its engine spreads the model over, and sees no others. Ray does not
know which one the learner uses: where the two must not share it, start Ray without the learner's
(`CUDA_VISIBLE_DEVICES=1,2,3 ray start ...`). Weights may come through vLLM's own transfer: a `TransferredWeights`
(vllm_transfer.py) is a source like any other.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray

from gmc_core.rollouts.child_process import dumps, loads
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Close, Command, Event, Failed, Ready
from gmc_core.rollouts.workers.server import EngineServer

PLACEMENT_SECONDS = 300.0


class EngineActor:
    """What runs in the actor's process: `run` in one thread, `take` in another."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._early: dict[int, Command] = {}  # by number: threads of an actor may overtake each other
        self._next = 0

    def place(self) -> tuple[int, str]:
        """(process id, address of the node)."""
        return os.getpid(), ray.util.get_node_ip_address()

    def take(self, number: int, command: Command) -> None:
        self._early[number] = command
        while self._next in self._early:
            self._inbox.put(self._early.pop(self._next))
            self._next += 1

    def run(self, name: str, spec: EngineSpec, in_flight_updates: bool) -> Iterator[bytes]:
        """Every event as bytes (child_process.dumps: a group travels without the storage it was cut from)."""
        started = time.time()
        try:
            engine = spec.build()
        except Exception as error:
            reason = f"worker {name} could not start: {type(error).__name__}: {error}"
            yield dumps(Failed(name, reason, recoverable=False))
            return
        yield dumps(Ready(name, time.time() - started))
        server = EngineServer(engine, name, in_flight_updates)
        while not server.closed:
            if server.idle:
                server.take(self._inbox.get())
            with contextlib.suppress(queue.Empty):
                while True:
                    server.take(self._inbox.get_nowait())
            for event in server.advance():
                yield dumps(event)


def resources(spec: EngineSpec) -> dict[str, int]:
    """What an actor with this engine asks of its node: its CPU threads, and on "cuda" the GPUs that share the model."""
    if spec.device != "cuda":
        return {"num_cpus": spec.threads, "num_gpus": 0}
    parallel = ("tensor_parallel_size", "pipeline_parallel_size") if spec.kind == "vllm" else ()
    gpus = 1
    for name in parallel:
        gpus *= int(spec.options.get(name, 1))
    return {"num_cpus": spec.threads, "num_gpus": gpus}


class RayWorker:
    """`RolloutWorker` around an actor, which is placed and builds its engine on its own time.

    Ray must have been started (ray_runtime.py). An actor whose process or node is lost gives
    `Failed(recoverable=True)`; one that could not start, or found a fault of its engine, says why with
    `recoverable=False`, as does one that no node had room for within `placement_seconds`. It ends when this process
    ends, however.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        events: queue.SimpleQueue[Event],
        in_flight_updates: bool = True,
        placement_seconds: float = PLACEMENT_SECONDS,
    ) -> None:
        self.name = name
        self.spec = spec
        self.events = events
        self._in_flight_updates = in_flight_updates
        self._placement_seconds = placement_seconds
        self._ended = threading.Event()  # by a Failed or by close: no more commands, no more events
        self._sending, self._sent = threading.Lock(), 0
        self._place: tuple[int, str] | None = None
        self._actor = (
            ray.remote(concurrency_groups={"commands": 1, "engine": 1})(EngineActor)
            .options(
                **resources(spec),
                max_restarts=0,
                max_task_retries=0,
                runtime_env={"env_vars": spec.process_environment()},
            )
            .remote()
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int | None:
        """Of the actor's process, on its node; None until it is placed."""
        return None if self._place is None else self._place[0]

    def send(self, command: Command) -> None:
        """Note a command for the actor. Raises what pickling raises for one that cannot travel."""
        with self._sending:
            if not self._ended.is_set():
                self._submit(command)

    def kill(self) -> None:
        """For one that has stopped to answer: `Failed(recoverable=True)` follows, as after any other kill."""
        with contextlib.suppress(Exception):  # it is gone, or Ray is
            ray.kill(self._actor)

    def close(self, timeout: float = 5.0) -> None:
        """Let the actor finish its step and end; kill it after `timeout` seconds."""
        with self._sending:
            if not self._ended.is_set():
                self._ended.set()
                self._submit(Close())
        self._reader.join(timeout if self._place is not None else 0)  # who is not placed yet has nothing to finish
        self.kill()
        self._reader.join(10.0)  # Ray tells it that the actor is gone, unless the cluster is gone as well

    def _submit(self, command: Command) -> None:
        self._actor.take.options(concurrency_group="commands").remote(self._sent, command)
        self._sent += 1

    def _read(self) -> None:
        ready = False
        try:
            place = self._actor.place.remote()
            if not ray.wait([place], timeout=self._placement_seconds)[0]:
                self._fail(self._no_room(), recoverable=False)
                return
            self._place = ray.get(place)
            stream = self._actor.run.options(concurrency_group="engine", num_returns="streaming").remote(
                self.name, self.spec, self._in_flight_updates
            )
            for reference in stream:
                event = loads(ray.get(reference))
                ready |= isinstance(event, Ready)
                if isinstance(event, Failed):
                    self._fail(event.reason, event.recoverable)
                elif not self._ended.is_set():
                    self.events.put(event)
            self._fail(f"worker {self.name} ended without being asked to", recoverable=ready)
        except ray.exceptions.RayError as error:
            self._fail(self._why(ready, error), recoverable=_may_go_on(error))
        except Exception as error:  # the thread must not end without a word
            self._fail(f"worker {self.name} was lost: {type(error).__name__}: {error}", recoverable=False)
        finally:
            self.kill()

    def _fail(self, reason: str, recoverable: bool) -> None:
        with self._sending:
            if not self._ended.is_set():
                self._ended.set()
                self.events.put(Failed(self.name, reason, recoverable))

    def _why(self, ready: bool, error: Exception) -> str:
        where = "" if self._place is None else f" (process {self._place[0]} on {self._place[1]})"
        state = "while it worked" if ready else "before its engine was built"
        what = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
        return f"worker {self.name}{where} was lost {state}: {type(error).__name__}: {what}"

    def _no_room(self) -> str:
        wanted = resources(self.spec)
        have: dict[str, Any] = ray.available_resources()
        return (
            f"no node had room for worker {self.name} within {self._placement_seconds:.0f} s: it asks for "
            f"{wanted['num_cpus']} CPUs and {wanted['num_gpus']} GPUs on one node; free in the whole cluster are "
            f"{have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs. Use fewer workers or threads, or add nodes"
        )


def _may_go_on(error: Exception) -> bool:
    """Whether another actor could take over: the process or the node is gone, not for what it was told to do."""
    if isinstance(error, ray.exceptions.RayActorError):
        return not error.actor_init_failed
    return isinstance(error, ray.exceptions.NodeDiedError | ray.exceptions.WorkerCrashedError)
