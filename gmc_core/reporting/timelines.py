"""What the clock says of live runs: who generated, learned or waited when, and what running side by side made of it.

A run's timeline (training/timeline.py) is in seconds since the epoch; here it starts when the first token was begun, so
that runs lie side by side and building an engine does not count. Times are measurements: another machine, or the same
one on another day, gives others. What a run trained on is in its ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmc_core.training.ledger import Ledger
from gmc_core.training.live_loop import LEDGER
from gmc_core.training.run_directory import DamagedRecordError
from gmc_core.training.timeline import EVENTS, LEARNER

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("worker", "kind", "start", "end", "version", "update", "tokens", "staleness", "staleness_max")
LEDGER_PARTS = ("issued", "counts", "drop_reasons", "reissued", "staleness_rollouts")


@dataclass(frozen=True)
class RunTimeline:
    """The events of a live run as it recorded them, and its ledger without the state of every single ticket."""

    events: Sequence[Mapping[str, Any]]
    ledger: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunTimeline:
        """From the folder of a finished live run.

        DamagedRecordError for a folder without them, or a run that was interrupted and resumed: its clock has a hole.
        LedgerError for a ledger that does not balance.
        """
        try:
            events = [json.loads(line) for line in (folder / EVENTS).read_text(encoding="utf-8").splitlines()]
            content = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DamagedRecordError(f"{folder} has no timeline of a live run ({error})") from error
        Ledger.from_plain(content)
        kinds = Counter((event["worker"], event["kind"]) for event in events)
        if any(kinds[worker, "start"] > kinds[worker, "lost"] + 1 for worker, _ in kinds):
            raise DamagedRecordError(
                f"the run in {folder} was interrupted and resumed: the time between is in its timeline. Delete the "
                "folder to measure it again"
            )
        return cls(events, {name: content[name] for name in LEDGER_PARTS})

    def table(self) -> pd.DataFrame:
        """One row per event, in the order of their starts, with `COLUMNS`; `start` and `end` in seconds since the first
        token was begun (negative: before that).

        ValueError for a run that generated nothing.
        """
        import pandas as pd

        first = min((event["start"] for event in self.events if event["kind"] == "generate"), default=None)
        if first is None:
            raise ValueError("this timeline has no event of kind 'generate': nothing to count its time from")
        rows = pd.DataFrame(list(self.events)).reindex(columns=list(COLUMNS))
        rows[["start", "end"]] -= first
        counts = {"version": "Int32", "update": "Int32", "tokens": "Int64", "staleness_max": "Int32"}
        rows = rows.astype(counts | {"staleness": "float64"})
        return rows.sort_values(["start", "end"], kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Pace:
    """Where the time of a run went: `updates` of them in steady state, everything else in seconds an update.

    `wall` from one update to the next; `generate` and `load` of a rollout worker (their mean, if there are several);
    `learn`, `publish`, `evaluate` and `wait` of the learner.
    """

    updates: int
    wall: float
    generate: float
    load: float
    learn: float
    publish: float
    evaluate: float
    wait: float

    @property
    def idle(self) -> float:
        """What a rollout worker did not use."""
        return max(0.0, self.wall - self.generate - self.load)

    @property
    def efficiency(self) -> float:
        """max(generation, learning) / wall: 1 when the slower of the two never stops."""
        return max(self.generate, self.learn) / self.wall


def pace(events: pd.DataFrame, skip: int = 0, rest: int = 0) -> Pace:
    """The pace of a run without its first `skip` and last `rest` updates, from the rows of `RunTimeline.table`.

    Without `skip` time counts from the first token, so the first batch, for which the learner waits, is part of it.
    `rest`: at bound k everything is issued k + 1 updates before the end, then the workers run dry: k leaves that out.
    ValueError when no update is left.
    """
    learned = events[events["kind"] == "learn"].sort_values("start")
    count = len(learned) - skip - rest
    if min(skip, rest) < 0 or count < 1:
        raise ValueError(
            f"pace got skip={skip}, rest={rest} and a run of {len(learned)} updates; expected at least 0 of each and "
            "fewer than that together"
        )
    start = float(learned["end"].iloc[skip - 1]) if skip else 0.0
    end = float(learned["end"].iloc[skip + count - 1])
    inside = events.assign(seconds=(events["end"].clip(upper=end) - events["start"].clip(lower=start)).clip(lower=0.0))
    of_learner = inside["worker"] == LEARNER
    workers = inside.loc[inside["kind"] == "generate", "worker"].nunique()
    spent = inside[of_learner].groupby("kind")["seconds"].sum() / count
    spent_generating = inside[~of_learner].groupby("kind")["seconds"].sum() / count / max(workers, 1)
    return Pace(
        updates=count,
        wall=(end - start) / count,
        generate=float(spent_generating.get("generate", 0.0)),
        load=float(spent_generating.get("load_weights", 0.0)),
        **{name: float(spent.get(name, 0.0)) for name in ("learn", "publish", "evaluate", "wait")},
    )


def pace_table(events: Mapping[int, pd.DataFrame], skip: int = 0) -> pd.DataFrame:
    """One row per bound of the staleness: its `Pace` in steady state, and more.

    `idle` and `efficiency` as in `Pace`. Two columns compare with the first run over the same updates (what an update
    costs changes along a run): `speed_up`, and `attained`, the slower of generation and learning *there* over the wall
    time *here*: for a synchronous first run, whose two halves do not disturb each other, what was reached of the best
    that overlap can do.
    """
    import pandas as pd

    first, rows = next(iter(events.values())), {}
    for bound, own in events.items():
        found, there = pace(own, skip, rest=bound), pace(first, skip, rest=bound)
        rows[bound] = {item.name: getattr(found, item.name) for item in fields(Pace)} | {
            "idle": found.idle,
            "efficiency": found.efficiency,
            "speed_up": there.wall / found.wall,
            "attained": max(there.generate, there.learn) / found.wall,
        }
    return pd.DataFrame(rows).T.astype({"updates": int})


def staleness_shares(ledger: Mapping[str, Any]) -> dict[int, float]:
    """Share of the rollouts trained on at each staleness, in updates."""
    counts = {int(value): count for value, count in ledger["staleness_rollouts"].items()}
    total = sum(counts.values())
    return {value: count / total for value, count in sorted(counts.items())}
