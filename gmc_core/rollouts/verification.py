"""Verifiers kept at arm's length: rewards from worker processes, each under a wall limit.

A verifier runs what a model wrote, or a parser over it; some day it raises, loops, blocks in C or takes its process
down. No signal is used (a handler works in the main thread only and can be swallowed): a process that exceeds the limit
is killed and replaced. What a group without rewards means is for the schedule to decide.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from gmc_core.rollouts.child_process import ChildProcess, dumps
from gmc_core.rollouts.tasks import Prompt, Task

START_SECONDS = 300.0  # imports on a busy machine; not part of any verification's limit
FAULTS = {
    "raised": "the verifier raised",
    "invalid": "it returned no finite number",
    "hung": "it did not answer within the limit",
    "died": "its process ended",
    "unavailable": "its process could not start; every other group would fare the same",
}


@dataclass(frozen=True)
class Verified:
    """The rewards of a group, in the order of its texts. Times as in `workers.messages`."""

    ticket: int
    rewards: tuple[float, ...]
    started: float
    finished: float


@dataclass(frozen=True)
class VerifierFault:
    """A group without rewards. `kind` is one of `FAULTS`; `reason` is for the user. Never a reward of 0 in disguise."""

    ticket: int
    kind: str
    reason: str
    started: float
    finished: float


Verdict = Verified | VerifierFault


class InvalidReward(ValueError):
    """A verifier returned what is no reward."""


def verify(task: Task, prompt: Prompt, texts: Sequence[str], finished: Sequence[bool]) -> tuple[float, ...]:
    """`task.reward` of every text. InvalidReward for what is not a finite number."""
    rewards = []
    for text, done in zip(texts, finished, strict=True):
        given = task.reward(prompt, text, done)
        try:
            reward = float(given)
        except (TypeError, ValueError):
            reward = float("nan")
        if not abs(reward) < float("inf"):
            raise InvalidReward(
                f"reward {given!r} of {text[:200]!r} for {prompt.text[:200]!r}; expected a finite number"
            )
        rewards.append(reward)
    return tuple(rewards)


class VerifierPool:
    """`submit` a group's texts; a `Verified` or a `VerifierFault` per ticket arrives in `results`, in any order.

    `processes`: 0 verifies inside `submit`, in the caller: deterministic, and for verifiers that cannot hang.
    `limit_seconds`: wall time for one group; then its process is killed. `results`: the queue to post to, e.g. the one
    of the rollout workers (default: a new one).
    Raises ValueError for a task that other processes cannot import, or a limit that is not positive.
    """

    def __init__(
        self,
        task: Task,
        processes: int = 1,
        limit_seconds: int | float = 10.0,
        results: queue.SimpleQueue | None = None,
    ) -> None:
        if not isinstance(processes, int) or processes < 0:
            raise ValueError(f"VerifierPool got processes={processes!r}; expected an integer of at least 0")
        if not limit_seconds > 0:
            raise ValueError(f"VerifierPool got limit_seconds={limit_seconds!r}; expected a number above 0")
        self.task = task
        self.limit_seconds = limit_seconds
        self.results = results if results is not None else queue.SimpleQueue()
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: set[ChildProcess] = set()
        self._closed = False
        self._task_bytes = _portable(task) if processes else b""
        self._threads = [
            threading.Thread(target=self._serve, name=f"verifier {index}", daemon=True) for index in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: int, prompt: Prompt, texts: Sequence[str], finished: Sequence[bool]) -> None:
        """Verify `texts[g]`, which ended by itself if `finished[g]`. Returns at once unless `processes` is 0."""
        if self._closed:
            raise RuntimeError("this VerifierPool is closed; make a new one")
        if len(texts) != len(finished):
            raise ValueError(f"ticket {ticket}: {len(texts)} texts and {len(finished)} finished; expected one of each")
        job = (ticket, prompt, tuple(texts), tuple(bool(done) for done in finished))
        if self._threads:
            self._jobs.put(job)
            return
        started = time.time()
        kind, outcome = attempt(self.task, *job[1:])
        self.results.put(self._verdict(ticket, kind, outcome, started))

    def close(self) -> None:
        """Kill the processes; what is being verified has no result any more."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # --- one thread per process ---

    def _serve(self) -> None:
        child, fresh = self._start(), True
        while child is not None and (job := self._jobs.get()) is not None:
            ticket, *question = job
            started = time.time()
            if fresh and (failure := self._await_start(child)):
                kind, outcome = "unavailable", failure
            else:
                started = time.time()  # imports are not part of the limit
                kind, outcome = self._ask(child, question)
            if kind in ("hung", "died", "unavailable"):
                self._discard(child)
                child, fresh = self._start(), True
            else:
                fresh = False
            if not self._closed:
                self.results.put(self._verdict(ticket, kind, outcome, started))
        if child is not None:
            self._discard(child)

    def _ask(self, child: ChildProcess, question: Sequence) -> tuple[str, object]:
        try:
            child.send(question)
            return child.receive(self.limit_seconds)
        except TimeoutError:
            return "hung", f"no answer within {self.limit_seconds:g} seconds; its process was killed"
        except Exception as error:  # EOF, a broken pipe, or bytes that are no answer
            child.kill()
            return "died", f"{type(error).__name__}: {child.obituary()}"

    def _await_start(self, child: ChildProcess) -> str | None:
        """What kept it from starting, None when it is ready."""
        try:
            kind, message = child.receive(START_SECONDS)
        except TimeoutError:
            return f"not ready within {START_SECONDS:g} seconds"
        except Exception:
            child.kill()
            return child.obituary()
        return None if kind == "ready" else message

    def _start(self) -> ChildProcess | None:
        with self._lock:
            if self._closed:
                return None
            child = ChildProcess("gmc_core.rollouts.verification_main", {"OMP_NUM_THREADS": "1"})
            self._children.add(child)
        with contextlib.suppress(OSError):  # gone already: `_await_start` finds out why
            child.connection.send_bytes(self._task_bytes)
        return child

    def _discard(self, child: ChildProcess) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()

    @staticmethod
    def _verdict(ticket: int, kind: str, outcome: object, started: float) -> Verdict:
        if kind == "rewards":
            return Verified(ticket, outcome, started, time.time())
        return VerifierFault(ticket, kind, f"ticket {ticket}: {FAULTS[kind]}: {outcome}", started, time.time())


def attempt(task: Task, prompt: Prompt, texts: Sequence[str], finished: Sequence[bool]) -> tuple[str, object]:
    """("rewards", them), ("invalid", why) or ("raised", the traceback): nothing a verifier raises gets out."""
    try:
        return "rewards", verify(task, prompt, texts, finished)
    except InvalidReward as error:
        return "invalid", str(error)
    except KeyboardInterrupt:
        raise  # the user's, when this runs in the caller
    except BaseException:  # SystemExit included: an exit is no reward
        return "raised", traceback.format_exc(limit=-3)


def _portable(task: Task) -> bytes:
    advice = "define its class in a module that other processes can import, or verify in the caller with processes=0"
    if type(task).__module__ == "__main__":
        raise ValueError(f"task {type(task).__name__} is defined in a notebook or script; {advice}")
    try:
        return dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"task {type(task).__name__} cannot be sent to a process ({error}); {advice}") from error
