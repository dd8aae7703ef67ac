"""events.jsonl: who did what when, in wall-clock time. Figure 1 is drawn from it; no result depends on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gmc_core.training.run_directory import RunDirectory

EVENTS = "events.jsonl"
LEARNER, VERIFIER = "learner", "verifier"  # lanes beside those of the rollout workers
KINDS = {
    "start": "a worker built its engine, or a session of the learner began",
    "generate": "a worker sampled without a break under one policy version; tokens",
    "load_weights": "a worker took a policy version; gap: largest |log-prob difference| of the probe",
    "verify": "a group got its rewards, or not (fault)",
    "wait": "the learner had no batch",
    "learn": "an update; tickets, tokens, staleness (mean), staleness_max, queue_length, dropped_groups, restarts",
    "publish": "weights were written for the workers",
    "evaluate": "the learner's policy was evaluated",
    "checkpoint": "a checkpoint was written",
    "lost": "a worker was lost; reason",
}


class Timeline:
    """Appends rows: worker, kind, start, end (seconds since the epoch), version, update (updates done) and more."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self.update = 0  # updates behind the learner, noted in every row
        directory.trim(EVENTS)

    def note(self, worker: str, kind: str, start: float, end: float, version: int | None = None, **more: Any) -> None:
        if kind not in KINDS:
            raise ValueError(f"a timeline has no events of kind {kind!r}; choose one of {', '.join(KINDS)}")
        row = {"worker": worker, "kind": kind, "start": start, "end": end, "version": version, "update": self.update}
        self._directory.append(EVENTS, row | more)

    @contextmanager
    def noting(self, worker: str, kind: str, version: int | None = None) -> Iterator[dict[str, Any]]:
        """Note the block as one event when it ends without an exception; more fields may be put into the dict."""
        more: dict[str, Any] = {}
        start = time.time()
        yield more
        self.note(worker, kind, start, time.time(), version, **more)
