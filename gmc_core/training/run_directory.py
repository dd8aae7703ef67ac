"""The record of one run while it grows: `build/runs/<experiment>/<run_id>/`.

    config.json         the RunConfig, and the fingerprint of the initial model
    metrics.jsonl       one line per update            (a function of the config: no clock in it)
    evaluations.jsonl   one line per evaluation        (likewise)
    events.jsonl        live loop: who did what when   (clocks; training/timeline.py)
    ledger.json         live loop: every group issued, what became of it, staleness of what was trained on
    checkpoint.safetensors   while unfinished
    policy.safetensors  the final weights
    provenance.json     commit, lock, versions, machine, seconds
    summary.json        written last: a run with a summary is finished

One process owns a run at a time (a lock that the system releases when its holder dies). A finished record is reused,
an interrupted one resumes, a damaged one is set aside under another name and reported, never deleted.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmc_core.files import append_line, write_atomically
from gmc_core.training.run_config import RunConfig

CHECKPOINT = "checkpoint.safetensors"


class RunClaimedError(RuntimeError):
    """Another process is working on this run."""


class DamagedRecordError(ValueError):
    """A file of a run record is missing, half-written or contradicts another."""


@dataclass(frozen=True)
class RunRecord:
    """A finished run: its config, one dict per update, one per evaluation, the summary, and where it lies."""

    config: RunConfig
    metrics: list[dict[str, float]]
    evaluations: list[dict[str, float]]
    summary: dict[str, float]
    provenance: dict[str, Any]
    path: Path


class RunDirectory:
    """The folder of one run. `claim()` it before writing."""

    def __init__(self, root: Path, config: RunConfig, fingerprint: str) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.path = Path(root) / config.run_id

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Own the run for the length of the block. Raises RunClaimedError if another process does."""
        from filelock import FileLock, Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.parent / f".{self.path.name}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunClaimedError(f"run {self.path.name} is being worked on by another process") from None
        try:
            yield
        finally:
            lock.release()

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def open(self) -> None:
        """Make the folder ready to write: new, or as an interrupted run left it. Raises DamagedRecordError."""
        if self.path.exists():
            self._check_identity()
            return
        self.path.mkdir(parents=True)
        self.write_json("config.json", {"config": self.config.to_dict(), "fingerprint": self.fingerprint})

    def set_aside(self, reason: str) -> None:
        """Rename the folder so that the run starts again and what was computed can still be looked at."""
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        self.path.rename(target)
        warnings.warn(f"{reason}. The record was set aside as {target.name} and the run starts again", stacklevel=3)

    def _check_identity(self) -> None:
        content = self._read_json("config.json")
        try:
            same = (
                RunConfig.from_dict(content["config"]) == self.config
            )  # a field it did not have yet is at its default
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRecordError(
                f"{self.path / 'config.json'} holds no config of this version ({error})"
            ) from error
        if not same:
            raise DamagedRecordError(f"{self.path / 'config.json'} holds another config than its run id says")
        if content.get("fingerprint") != self.fingerprint:
            raise DamagedRecordError(
                f"{self.path.name} was made from another initial model "
                f"(fingerprint {content.get('fingerprint')}, now {self.fingerprint})"
            )

    # --- lines ---

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        append_line(self.path / name, json.dumps(row))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All complete lines. A half-written last line (a kill in mid-write) is left out."""
        path = self.path / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.split("\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise DamagedRecordError(f"{path} has a line that is no JSON ({error})") from error

    def rewind(self, update: int) -> None:
        """Keep what lies at or before `update`: the lines that a checkpoint of that update had seen (-1: none)."""
        for name, expected in (("metrics.jsonl", update), ("evaluations.jsonl", None)):
            kept = [row for row in self.rows(name) if row["update"] <= update]
            if expected is not None and [row["update"] for row in kept] != list(range(1, expected + 1)):
                raise DamagedRecordError(f"{self.path / name} lacks updates before the checkpoint at {update}")
            write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def trim(self, name: str) -> None:
        """Cut off a half-written last line, so that appending goes on with a whole one."""
        path = self.path / name
        if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
            write_atomically(path, content[: content.rfind(b"\n") + 1])

    # --- finishing and reading ---

    def write_json(self, name: str, content: Mapping[str, Any], *, line_per_key: bool = False) -> None:
        """Write `content` whole, indented or, for long lists, with a line for each of its keys."""
        if line_per_key:
            text = "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(content[key])}" for key in content) + "\n}"
        else:
            text = json.dumps(content, indent=2)
        write_atomically(self.path / name, (text + "\n").encode())

    def finish(self, summary: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        self.write_json("provenance.json", provenance)
        self.write_json("summary.json", summary)
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def read(self) -> RunRecord:
        """The finished record. Raises DamagedRecordError naming the file that is wrong."""
        self._check_identity()
        metrics, evaluations = self.rows("metrics.jsonl"), self.rows("evaluations.jsonl")
        if [row["update"] for row in metrics] != list(range(1, self.config.updates + 1)):
            raise DamagedRecordError(
                f"{self.path / 'metrics.jsonl'} does not hold {self.config.updates} updates in order"
            )
        if not evaluations:
            raise DamagedRecordError(f"{self.path / 'evaluations.jsonl'} holds no evaluation")
        return RunRecord(
            config=self.config,
            metrics=metrics,
            evaluations=evaluations,
            summary=self._read_json("summary.json"),
            provenance=self._read_json("provenance.json"),
            path=self.path,
        )

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DamagedRecordError(f"{self.path / name} cannot be read ({error})") from error
