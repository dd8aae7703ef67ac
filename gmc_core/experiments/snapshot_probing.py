"""One measurement late in a run, of its current policy against older snapshots of it (`training.snapshot_fidelity`).

The snapshots wait in `<run folder>/snapshots/` until the measurement and are removed after it; its rows lie in
`<run folder>/probes/`, where those of `probing` lie too, so that the tables of an experiment hold both in one place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gmc_core.experiments.probing import FOLDER
from gmc_core.files import write_atomically
from gmc_core.rollouts.policy import snapshot
from gmc_core.training.loop import TrainingView
from gmc_core.training.snapshot_fidelity import SnapshotPlan, snapshot_rows

SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class SnapshotSchedule:
    """Measure after `update` against the policies of `delays` updates before; delay 0 is the check without staleness.

    `seconds`: CPU time of one measurement, for planning.
    """

    update: int
    delays: tuple[int, ...]
    plan: SnapshotPlan = field(default_factory=SnapshotPlan)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.delays or min(self.delays) < 0 or max(self.delays) >= self.update:
            raise ValueError(
                f"SnapshotSchedule has update={self.update} and delays={self.delays}; expected delays from 0 to "
                f"{self.update - 1}: a run is observed from its first update on"
            )

    def observer(self, run_folder: Path) -> Callable[[TrainingView], None]:
        """What `train(observe=...)` takes. An interrupted run finds its snapshots again."""

        def observe(view: TrainingView) -> None:
            if self._rows_path(run_folder).exists():
                return
            if self.update - view.update in self.delays and view.update < self.update:
                self._keep(run_folder, view)
            if view.update == self.update:
                behaviors = self._behaviors(run_folder, view)  # one at a time in memory
                rows = snapshot_rows(view.policy, behaviors, view.task, view.config, plan=self.plan, index=view.update)
                path = self._rows_path(run_folder)
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, (json.dumps([{"update": view.update} | row for row in rows]) + "\n").encode())
                shutil.rmtree(run_folder / SNAPSHOTS, ignore_errors=True)

        return observe

    def rows(self, run_folder: Path) -> list[dict[str, Any]]:
        """The rows of a finished run. FileNotFoundError for a run that was made without the measurement."""
        path = self._rows_path(run_folder)
        if not path.exists():
            raise FileNotFoundError(
                f"run {run_folder.name} is finished but was not measured ({path.name} is missing). Delete the run's "
                "folder and run the experiment again"
            )
        return json.loads(path.read_text(encoding="utf-8"))

    def _keep(self, run_folder: Path, view: TrainingView) -> None:
        from safetensors.torch import save

        path = self._snapshot_path(run_folder, view.update)
        path.parent.mkdir(exist_ok=True)
        weights = {name: tensor.contiguous() for name, tensor in snapshot(view.policy.model).items()}
        write_atomically(path, save(weights))

    def _behaviors(self, run_folder: Path, view: TrainingView) -> Iterator[tuple[int, dict[str, Tensor]]]:
        from safetensors.torch import load_file

        for delay in self.delays:
            if delay == 0:
                yield 0, snapshot(view.policy.model)
            else:
                path = self._snapshot_path(run_folder, self.update - delay)
                yield delay, load_file(path, device=str(view.policy.device))

    def _rows_path(self, run_folder: Path) -> Path:
        return run_folder / FOLDER / f"snapshots-{self.update:05d}.json"

    @staticmethod
    def _snapshot_path(run_folder: Path, update: int) -> Path:
        return run_folder / SNAPSHOTS / f"update-{update:05d}.safetensors"
