"""Fidelity probes along a run: at which updates, of which estimators, and where their rows are kept.

The rows of the probe at update u lie in `<run folder>/probes/update-<u>.json`. A probe is a function of the policy, so
a run that is resumed makes the missing ones and keeps the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gmc_core.files import write_atomically
from gmc_core.training.fidelity import ProbePlan, probe
from gmc_core.training.loop import TrainingView

FOLDER = "probes"


@dataclass(frozen=True)
class ProbeSchedule:
    """Probes after these `updates`; `estimators` maps labels to the fields of RunConfig that they change."""

    updates: tuple[int, ...]
    estimators: Mapping[str, Mapping[str, Any]]
    plan: ProbePlan = field(default_factory=ProbePlan)

    def observer(self, run_folder: Path) -> Callable[[TrainingView], None]:
        """What `train(observe=...)` takes."""

        def observe(view: TrainingView) -> None:
            path = self._path(run_folder, view.update)
            if view.update not in self.updates or path.exists():
                return
            rows = probe(
                view.policy,
                view.behavior.weights,
                view.task,
                view.config,
                self.estimators,
                plan=self.plan,
                index=view.update,
            )
            path.parent.mkdir(exist_ok=True)
            stale = {"update": view.update, "staleness": view.update - view.behavior.version}
            write_atomically(path, (json.dumps([stale | row for row in rows]) + "\n").encode())

        return observe

    def rows(self, run_folder: Path) -> list[dict[str, Any]]:
        """Every row of a finished run. FileNotFoundError names the first probe that is missing."""
        found = []
        for update in self.updates:
            path = self._path(run_folder, update)
            if not path.exists():
                raise FileNotFoundError(
                    f"run {run_folder.name} is finished but has no probe at update {update} ({path.name}): it was made "
                    "without probes. Delete the run's folder and run the experiment again"
                )
            found += json.loads(path.read_text(encoding="utf-8"))
        return found

    @staticmethod
    def _path(run_folder: Path, update: int) -> Path:
        return run_folder / FOLDER / f"update-{update:05d}.json"
