"""Compact tables of an experiment: written once from its run folders, committed, and all that figures and claims read.

data/runs/<experiment>/
    protocol.md           question, choices, definitions (written before the runs)
    runs.csv              one row per run: config, summary, seconds
    metrics.parquet       one row per update: run_id and the metrics of METRICS
    evaluations.parquet   one row per evaluation
    provenance.json       commit, lock, versions, machine; hash of the tables
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.training.run_directory import DamagedRecordError, RunRecord

if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("runs.csv", "metrics.parquet", "evaluations.parquet")


@dataclass(frozen=True)
class Runs:
    """The tables of one experiment. `runs.run_id` joins them."""

    name: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    evaluations: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def data_hash(self) -> str:
        return self.provenance["tables"]

    def with_config(self, table: str, columns: Sequence[str] = ("estimator", "delay", "seed")) -> pd.DataFrame:
        """`metrics` or `evaluations` with columns of the run's config beside."""
        return getattr(self, table).merge(self.runs[["run_id", *columns]], on="run_id", validate="many_to_one")


def load_runs(experiment: str, *, root: Path | None = None) -> Runs:
    """The committed tables of `experiment` (`root` defaults to data/runs).

    Raises FileNotFoundError when there are none, DamagedRecordError when a table is unreadable or is not the one that
    its provenance describes; both say how to make them again.
    """
    import pandas as pd

    folder = (root or paths.COMMITTED_RUNS) / experiment
    again = f"`make experiments ONLY={experiment}` computes them"
    if not (folder / "provenance.json").exists():
        raise FileNotFoundError(f"no tables of experiment {experiment!r} in {folder}; {again}")
    try:
        provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        found = tables_hash(folder)
        runs = pd.read_csv(folder / "runs.csv")
        metrics = pd.read_parquet(folder / "metrics.parquet")
        evaluations = pd.read_parquet(folder / "evaluations.parquet")
    except Exception as error:  # whatever pandas and pyarrow raise for a broken file
        raise DamagedRecordError(f"the tables in {folder} cannot be read ({error}); {again}") from error
    if found != provenance.get("tables"):
        raise DamagedRecordError(
            f"the tables in {folder} have hash {found}, their provenance says {provenance.get('tables')}; {again}"
        )
    return Runs(experiment, runs, metrics, evaluations, provenance)


def tables_hash(folder: Path) -> str:
    """SHA-256 over the three tables, 16 hex digits."""
    digest = hashlib.sha256()
    for name in _TABLES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def write_tables(
    experiment: str, version: int, protocol: str, records: Sequence[RunRecord], *, root: Path | None = None
) -> Path:
    """Compact finished records into the tables of `experiment`; returns their folder.

    Metrics are stored in single precision: the records are exact, the tables are what is plotted.
    """
    import pandas as pd

    if not records:
        raise ValueError(f"experiment {experiment!r} has no finished run to write; run it first")
    folder = (root or paths.COMMITTED_RUNS) / experiment
    folder.mkdir(parents=True, exist_ok=True)
    run_rows, metric_frames, evaluation_frames = [], [], []
    for record in records:
        config = record.config.to_dict()
        options = {name: json.dumps(config.pop(name), sort_keys=True) for name in ("estimator_options", "task_options")}
        seconds = {f"{kind}_seconds": round(value, 2) for kind, value in record.provenance["seconds"].items()}
        fingerprint = {"model_fingerprint": record.provenance["model_fingerprint"]}
        run_rows.append({"run_id": record.config.run_id} | config | options | record.summary | seconds | fingerprint)
        metric_frames.append(pd.DataFrame(record.metrics).assign(run_id=record.config.run_id))
        evaluation_frames.append(pd.DataFrame(record.evaluations).assign(run_id=record.config.run_id))
    pd.DataFrame(run_rows).to_csv(folder / "runs.csv", index=False)
    for name, frames in (("metrics", metric_frames), ("evaluations", evaluation_frames)):
        table = pd.concat(frames, ignore_index=True)
        floats = table.select_dtypes("float64").columns
        table[floats] = table[floats].astype("float32")
        table["run_id"] = table["run_id"].astype("category")
        table.to_parquet(folder / f"{name}.parquet", index=False, compression="zstd")
    (folder / "protocol.md").write_text(protocol, encoding="utf-8")
    first = {key: value for key, value in records[0].provenance.items() if key not in ("seconds", "seed")}
    commits = sorted({str(record.provenance["commit"]) for record in records})
    provenance = {
        "experiment": experiment,
        "version": version,
        "runs": len(records),
        "tables": tables_hash(folder),
        "commits": commits,
        "dirty": any(record.provenance["dirty"] for record in records),
        "cpu_seconds": round(sum(record.provenance["seconds"]["cpu"] for record in records), 1),
        **{key: value for key, value in first.items() if key not in ("commit", "dirty")},
    }
    write_atomically(folder / "provenance.json", (json.dumps(provenance, indent=2) + "\n").encode())
    return folder
