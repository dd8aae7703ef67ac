"""What the driver and a rollout worker say to each other; every kind of worker speaks this and nothing else.

The driver sends commands in order; a worker answers with events, each naming the worker. Times are `time.time()`,
seconds since the epoch, so that the intervals of several processes lie on one axis.

Two ways to take a weight update, chosen when the worker is made:
- in flight (`in_flight_updates=True`): between two engine steps, at once; unfinished rollouts go on under it. When
  several updates wait, the newest is loaded and the others never are (their sources are not touched): a `WeightsLoaded`
  says that the worker needs no older version any more;
- drained (False): commands are carried out strictly in the order in which they came, each finished before the next is
  begun, so the groups of one `Generate` are decoded together and those of two are not. With one worker the record of a
  run is then a function of its config.
`Abort` and `Close` act at once either way: they come from a clock, not from the config.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.trajectories import Group

# --- commands: driver -> worker ---


@runtime_checkable
class WeightSource(Protocol):
    """Where the weights of a version lie: picklable, cheap to send, read on the other side."""

    def load(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Probe:
    """A response whose log-probs the learner knows: the worker scores it after an update and compares.

    `logp_T`: the learner's, fp32 nats at temperature 1. `tolerance`: the largest difference per token that is taken for
    rounding.
    """

    prompt_tokens_L: Tensor
    response_tokens_T: Tensor
    logp_T: Tensor
    tolerance: float


@dataclass(frozen=True)
class Generate:
    requests: Sequence[GroupRequest]


@dataclass(frozen=True)
class LoadWeights:
    version: int
    source: WeightSource
    probe: Probe | None = None


@dataclass(frozen=True)
class Abort:
    """Give these groups up, started or not. A `GroupDone` that was on its way may still arrive."""

    tickets: Sequence[int]


@dataclass(frozen=True)
class Close:
    pass


Command = Generate | LoadWeights | Abort | Close

# --- events: worker -> driver ---


@dataclass(frozen=True)
class Ready:
    """The engine is built; `seconds` it took."""

    worker: str
    seconds: float


@dataclass(frozen=True)
class GroupDone:
    """A whole group, without rewards. `started`: when its first step began."""

    worker: str
    ticket: int
    group: Group
    started: float
    finished: float


@dataclass(frozen=True)
class WeightsLoaded:
    """`gap`: largest |log-prob difference| of the probe (None without a probe)."""

    worker: str
    version: int
    started: float
    finished: float
    gap: float | None


@dataclass(frozen=True)
class Busy:
    """The worker generated without a break and under one policy version; `tokens` sampled meanwhile."""

    worker: str
    version: int
    started: float
    finished: float
    tokens: int


@dataclass(frozen=True)
class Failed:
    """The worker is gone. `recoverable`: a new one may take over (it was killed, its machine vanished).

    Not recoverable: what failed would fail again, e.g. the probe found other log-probs than the learner's; `reason` is
    what the user reads.
    """

    worker: str
    reason: str
    recoverable: bool


Event = Ready | GroupDone | WeightsLoaded | Busy | Failed


@runtime_checkable
class RolloutWorker(Protocol):
    """The driver's end of a worker. Its constructor takes (name, EngineSpec, events, in_flight_updates=...).

    Events arrive in `events`, a queue shared by all workers of a run. No method blocks. After `Failed` the worker takes
    no more commands; whoever owns it makes a new one and sends the lost tickets again.
    """

    name: str
    events: queue.SimpleQueue[Event]

    def send(self, command: Command) -> None: ...

    def close(self, timeout: float = 5.0) -> None:
        """Ask it to end, then end it."""
        ...
