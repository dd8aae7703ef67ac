"""Compact tables of an experiment: written once from its run folders, committed, and all that figures and claims read.

data/runs/<experiment>/
    protocol.md           question, choices, definitions (written before the runs)
    runs.csv              one row per run: config, summary, seconds
    metrics.parquet       one row per update: run_id and the metrics of METRICS
    evaluations.parquet   one row per evaluation
    probes.parquet        one row per fidelity probe, group size and estimator (experiments with probes)
    events.parquet        one row per event of a live run: who did what when (experiments that measure time)
    ledgers.json          what became of every group of those runs, and how stale their rollouts were
    provenance.json       commit, lock, versions, machine; hash of the tables
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.reporting.timelines import RunTimeline
from gmc_core.training.run_directory import DamagedRecordError, RunRecord

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_OPTIONAL = ("probes.parquet", "events.parquet", "ledgers.json")
_TABLES = ("runs.csv", "metrics.parquet", "evaluations.parquet", *_OPTIONAL)
MANTISSA_BITS = 12  # kept of the 23 of a single-precision metric: a relative error below 2^-13


@dataclass(frozen=True)
class Runs:
    """The tables of one experiment. `runs.run_id` joins them.

    `probes` is None for an experiment without; so are `events` and `ledgers` (by run id) for one that measures no time.
    """

    name: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    evaluations: pd.DataFrame
    provenance: dict[str, Any]
    probes: pd.DataFrame | None = None
    events: pd.DataFrame | None = None
    ledgers: dict[str, Any] | None = None

    @property
    def data_hash(self) -> str:
        return self.provenance["tables"]

    @property
    def version(self) -> int:
        return self.provenance["version"]

    @property
    def complete(self) -> bool:
        """Whether every run of the experiment is here; tables that grow over several sessions are not until the end."""
        return self.provenance.get("complete", True)

    def with_config(self, table: str, columns: Sequence[str] = ("estimator", "delay", "seed")) -> pd.DataFrame:
        """`metrics` or `evaluations` with columns of the run's config beside."""
        return getattr(self, table).merge(self.runs[["run_id", *columns]], on="run_id", validate="many_to_one")


def load_runs(experiment: str, *, root: Path | None = None, allow_partial: bool = False) -> Runs:
    """The committed tables of `experiment` (`root` defaults to data/runs).

    Raises FileNotFoundError when there are none, or only some of the runs so far (`allow_partial` accepts those),
    DamagedRecordError when a table is unreadable or is not the one that its provenance describes; all say how to make
    them.
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
        probes, events = (
            pd.read_parquet(folder / name) if (folder / name).exists() else None
            for name in ("probes.parquet", "events.parquet")
        )
        ledgers = None
        if (folder / "ledgers.json").exists():
            ledgers = json.loads((folder / "ledgers.json").read_text(encoding="utf-8"))
    except Exception as error:  # whatever pandas and pyarrow raise for a broken file
        raise DamagedRecordError(f"the tables in {folder} cannot be read ({error}); {again}") from error
    if found != provenance.get("tables"):
        raise DamagedRecordError(
            f"the tables in {folder} have hash {found}, their provenance says {provenance.get('tables')}; {again}"
        )
    tables = Runs(experiment, runs, metrics, evaluations, provenance, probes, events, ledgers)
    if not tables.complete and not allow_partial:
        raise FileNotFoundError(
            f"the tables in {folder} hold {len(runs)} of {provenance['expected']} runs of {experiment!r} so far; "
            f"`make experiments ONLY={experiment}` goes on"
        )
    return tables


def tables_hash(folder: Path) -> str:
    """SHA-256 over the tables, 16 hex digits."""
    digest = hashlib.sha256()
    for name in _TABLES:
        if name in _OPTIONAL and not (folder / name).exists():
            continue
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def write_tables(
    experiment: str,
    version: int,
    protocol: str,
    records: Sequence[RunRecord],
    *,
    probes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    timelines: Mapping[str, RunTimeline] | None = None,
    keep_metrics: bool = True,
    earlier: Runs | None = None,
    order: Sequence[str] | None = None,
    root: Path | None = None,
) -> Path:
    """Compact finished records into the tables of `experiment`; returns their folder.

    `order` names the runs of the experiment, in order (default: these records); with runs missing the tables are marked
    as not complete. `earlier` holds tables of the same experiment whose runs are kept.

    The records are exact, the tables are what is plotted: metrics are stored in single precision, rounded to
    `MANTISSA_BITS` bits, which halves their size; without `keep_metrics` that table keeps its columns and no rows.
    `probes` holds the rows of the fidelity probes of each run id, `timelines` what its clock said.
    """
    import pandas as pd

    if not records:
        raise ValueError(f"experiment {experiment!r} has no finished run to write; run it first")
    folder = (root or paths.COMMITTED_RUNS) / experiment
    folder.mkdir(parents=True, exist_ok=True)
    run_rows, metric_frames, evaluation_frames = [], [], []
    for record in records:
        config = record.config.to_dict()
        options = {
            name: json.dumps(config.pop(name), sort_keys=True)
            for name in ("estimator_options", "task_options", "engine_options")
        }
        seconds = {f"{kind}_seconds": round(value, 2) for kind, value in record.provenance["seconds"].items()}
        fingerprint = {"model_fingerprint": record.provenance["model_fingerprint"]}
        run_rows.append({"run_id": record.config.run_id} | config | options | record.summary | seconds | fingerprint)
        metric_frames.append(pd.DataFrame(record.metrics).assign(run_id=record.config.run_id))
        evaluation_frames.append(pd.DataFrame(record.evaluations).assign(run_id=record.config.run_id))
    probe_frames = [pd.DataFrame(rows).assign(run_id=run_id) for run_id, rows in (probes or {}).items()]
    event_frames = [timeline.table().assign(run_id=run_id) for run_id, timeline in (timelines or {}).items()]
    ledgers = {run_id: timeline.ledger for run_id, timeline in (timelines or {}).items()}
    runs = pd.DataFrame(run_rows)
    order = [record.config.run_id for record in records] if order is None else list(order)
    if earlier is not None:
        runs = pd.concat([earlier.runs[earlier.runs["run_id"].isin(order)], runs], ignore_index=True)
        metric_frames = [_rows_of(earlier.metrics, order), *metric_frames]
        evaluation_frames = [_rows_of(earlier.evaluations, order), *evaluation_frames]
        if earlier.probes is not None:
            probe_frames = [_rows_of(earlier.probes, order), *probe_frames]
        if earlier.events is not None:
            event_frames = [_rows_of(earlier.events, order), *event_frames]
            ledgers = {run_id: earlier.ledgers[run_id] for run_id in order if run_id in earlier.ledgers} | ledgers
    runs = runs.sort_values("run_id", key=lambda ids: ids.map(order.index), kind="stable")
    runs.to_csv(folder / "runs.csv", index=False)
    _write_parquet(folder / "metrics.parquet", metric_frames, order, rounded=True, rows=keep_metrics)
    _write_parquet(folder / "evaluations.parquet", evaluation_frames, order)
    for name in _OPTIONAL:
        (folder / name).unlink(missing_ok=True)
    if probe_frames:
        _write_parquet(folder / "probes.parquet", probe_frames, order)
    if event_frames:
        _write_parquet(folder / "events.parquet", event_frames, order)
        lines = [f"{json.dumps(run_id)}: {json.dumps(ledgers[run_id])}" for run_id in order if run_id in ledgers]
        write_atomically(folder / "ledgers.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    (folder / "protocol.md").write_text(protocol, encoding="utf-8")
    first = {key: value for key, value in records[0].provenance.items() if key not in ("seconds", "seed", "live")}
    before = earlier.provenance if earlier is not None else {"commits": [], "dirty": False, "cpu_seconds": 0.0}
    commits = sorted({str(record.provenance["commit"]) for record in records} | set(before["commits"]))
    cpu_seconds = before["cpu_seconds"] + sum(record.provenance["seconds"]["cpu"] for record in records)
    provenance = {
        "experiment": experiment,
        "version": version,
        "runs": len(runs),
        "expected": len(order),
        "complete": len(runs) == len(order),
        "tables": tables_hash(folder),
        "commits": commits,
        "dirty": before["dirty"] or any(record.provenance["dirty"] for record in records),
        "cpu_seconds": round(cpu_seconds, 1),
        **{key: value for key, value in first.items() if key not in ("commit", "dirty")},
        **_elsewhere(records, before),
    }
    write_atomically(folder / "provenance.json", (json.dumps(provenance, indent=2) + "\n").encode())
    return folder


def _elsewhere(records: Sequence[RunRecord], before: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Tables grow over machines and environments: `other_machine`, `other_versions`, `other_lock`, each of what some
    of the runs were made with besides what the first of the new ones names. Left out where there is none.
    """
    found = {}
    for key in ("machine", "versions", "lock"):
        main = records[0].provenance.get(key)
        seen = [*before.get(f"other_{key}", []), before.get(key), *(each.provenance.get(key) for each in records)]
        others = [value for n, value in enumerate(seen) if value not in (None, main) and value not in seen[:n]]
        if others:
            found[f"other_{key}"] = others
    return found


def _rows_of(table: pd.DataFrame, run_ids: Sequence[str]) -> pd.DataFrame:
    return table[table["run_id"].isin(run_ids)].astype({"run_id": str})


def _write_parquet(
    path: Path, frames: Sequence[pd.DataFrame], order: Sequence[str], *, rounded: bool = False, rows: bool = True
) -> None:
    import pandas as pd

    table = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    table = table.sort_values("run_id", key=lambda ids: ids.map(list(order).index), kind="stable", ignore_index=True)
    floats = table.select_dtypes("float64").columns
    table[floats] = table[floats].astype("float32")
    if rounded:
        for name in floats:
            table[name] = round_mantissa(table[name].to_numpy())
    table["run_id"] = table["run_id"].astype("category")
    if not rows:
        table = table.iloc[:0]
    split = [name for name in floats] if rounded else False
    table.to_parquet(path, index=False, compression="zstd", use_dictionary=["run_id"], use_byte_stream_split=split)


def round_mantissa(values: np.ndarray, bits: int = MANTISSA_BITS) -> np.ndarray:
    """float32 values rounded to `bits` bits of mantissa; NaN and infinities stay. Fewer bits compress better."""
    import numpy as np

    drop = 23 - bits
    with np.errstate(over="ignore"):
        raw = values.astype(np.float32).view(np.uint32)
        rounded = ((raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop)) << np.uint32(drop)
    return np.where(np.isfinite(values), rounded.view(np.float32), values).astype(np.float32)
