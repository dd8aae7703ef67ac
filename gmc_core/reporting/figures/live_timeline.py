"""Figure 1: the measured timeline of the live loop, synchronous beside asynchronous, with the staleness of each batch.

Who generates and who learns, under which policy version; below, how old what each update learnt from was; on the right,
the shares of staleness over all rollouts that were trained on. The times are records of one machine, so the figure is a
function of the records, and these are not a function of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.timelines import pace_table, staleness_shares
from gmc_core.training.timeline import LEARNER, VERIFIER

NEEDS = Needs(("live_timeline",))
SKIP = 4  # updates at the start of a run that its pace leaves out, as it does the last k
DRAWN = ("generate", "load_weights", "learn", "publish", "wait", "evaluate")
COLORS = {"wait": "#E2E2E2", "load_weights": "#222222", "publish": "#222222", "evaluate": "#C8B8A0"}
OLDEST = "#D55E00"
WIDTH, LEFT, MAIN, SIDE = 13.0, 0.95, 9.85, 1.55  # inches: of the figure, of its margin, of timelines, of shares
HEAD, TITLE, LANE, GAP, STALENESS, FOOT = 0.4, 0.36, 0.42, 0.1, 0.55, 1.3  # heights
_VERSIONS = mpl.colormaps["viridis"]


def compute(profile: Profile) -> dict[str, Any]:
    """From the tables of `live_timeline`."""
    (tables,) = NEEDS.load(profile).values()
    return figure_data(tables)


def figure_data(tables: Runs) -> dict[str, Any]:
    """Events, batches and shares of staleness as flat arrays whose `*_run` is the place in `bound`, smallest first.

    ValueError for tables without timelines, or with two runs of one bound.
    """
    runs = tables.runs.sort_values("max_staleness")
    if tables.events is None or runs["max_staleness"].duplicated().any():
        raise ValueError(f"the tables of {tables.name} are not timelines of one run for each max_staleness")
    events = {int(run.max_staleness): tables.events[tables.events["run_id"] == run.run_id] for run in runs.itertuples()}
    paces = pace_table(events, skip=SKIP)
    workers = sorted(set(tables.events["worker"]) - {LEARNER, VERIFIER})
    machine = tables.provenance.get("machine", {})
    data: dict[str, Any] = {
        "experiment": tables.name,
        "engine": str(runs["engine"].iloc[0]),
        "setting": np.array([runs[name].iloc[0] for name in ("prompts_per_update", "group_size", "updates")]),
        "machine": f"{machine['cores']} cores of {machine['processor']}" if machine else "a machine not named",
        "bound": runs["max_staleness"].to_numpy(),
        "lanes": np.array([*workers, LEARNER]),
        **{f"pace_{name}": paces[name].to_numpy(dtype=float) for name in paces.columns if name != "updates"},
    }
    events_found, batches, shares = [], [], []
    for k, (run_id, rows) in enumerate(zip(runs["run_id"], events.values(), strict=True)):
        last = rows.loc[rows["kind"] == "learn", "end"].max()
        kept = rows[rows["kind"].isin(DRAWN) & (rows["end"] > 0) & (rows["start"] < last)]
        for row in kept.itertuples():
            lane = list(data["lanes"]).index(row.worker)
            events_found.append((k, lane, DRAWN.index(row.kind), row.version, max(row.start, 0.0), min(row.end, last)))
        for row in rows[rows["kind"] == "learn"].itertuples():
            batches.append((k, row.start, row.end, row.version, row.staleness, row.staleness_max))
        shares += [(k, value, share) for value, share in staleness_shares(tables.ledgers[run_id]).items()]
    for prefix, names, found in (
        ("event", ("run", "lane", "kind", "version", "start", "end"), events_found),
        ("batch", ("run", "start", "end", "version", "staleness", "staleness_max"), batches),
        ("share", ("run", "staleness", "share"), shares),
    ):
        whole = ("run", "lane", "kind", "version", "staleness_max", *(("staleness",) if prefix == "share" else ()))
        columns = np.array(found, dtype=float).T
        data |= {f"{prefix}_{n}": c.astype(int) if n in whole else c for n, c in zip(names, columns, strict=True)}
    data["event_kind"] = np.array(DRAWN)[data["event_kind"]]
    return data


def draw(data: dict[str, Any]) -> Figure:
    """From the values of `figure_data`; one block of panels for each run.

    Everything stands at a place of its own, in inches: a layout that is solved for differs in its last digits from one
    process to the next, and so would the document.
    """
    bounds = [int(bound) for bound in data["bound"]]
    P, G, updates = (int(value) for value in data["setting"])
    norm, end = Normalize(0, max(updates - 1, 1)), float(data["batch_end"].max())
    lanes = LANE * len(data["lanes"])
    block = TITLE + lanes + GAP + STALENESS
    height = HEAD + block * len(bounds) + FOOT
    fig = plt.figure(figsize=(WIDTH, height))
    fig.set_layout_engine("none")  # as an argument of `figure` it would be forgotten when a file is written

    def panel(left: float, top: float, width: float, tall: float) -> Axes:
        """`top` in inches from the upper edge of the figure."""
        return fig.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))

    for k, bound in enumerate(bounds):
        top, last = HEAD + k * block + TITLE, k == len(bounds) - 1
        upper, lower = panel(LEFT, top, MAIN, lanes), panel(LEFT, top + lanes + GAP, MAIN, STALENESS)
        _draw_lanes(upper, data, k, norm)
        upper.set_title(_title(data, k, "abcdefgh"[k]))
        _draw_batches(lower, data, k, bound, norm)
        for ax in (upper, lower):
            ax.set_xlim(0, end * 1.005)
            ax.tick_params(labelbottom=last and ax is lower)
        if last:
            lower.set_xlabel("seconds since the first token")
        _draw_shares(panel(LEFT + MAIN + 0.45, top, SIDE, lanes + GAP + STALENESS), data, k, last)
    _draw_key(fig, data, norm, panel(LEFT, height - 0.62, 4.2, 0.15))
    fig.text(
        0.1 / WIDTH, 1 - 0.08 / height,
        f"{updates} updates of {P} prompts x {G} rollouts, a rollout worker ({data['engine']}) and a learner of one "
        f"thread each, on {data['machine']}; one run each: a timeline, not an estimate\n"
        "an update: its upper half has the colour of the policy that learns, its lower half that of the policy that "
        "sampled the batch",
        va="top", fontsize=10,
    )  # fmt: skip
    return fig


def _title(data: dict[str, Any], k: int, letter: str) -> str:
    value = {name: float(data[f"pace_{name}"][k]) for name in ("wall", "wait", "idle", "speed_up", "efficiency")}
    name = "synchronous" if data["bound"][k] == 0 else "asynchronous"
    faster = f", {value['speed_up']:.2f} x as fast" if k else ""
    return (
        f"({letter}) {name}, k = {data['bound'][k]}: {value['wall']:.2f} s an update{faster}; worker idle "
        f"{value['idle'] / value['wall']:.0%}, learner waits {value['wait'] / value['wall']:.0%}"
    )


def _draw_lanes(ax: Axes, data: dict[str, Any], k: int, norm: Normalize) -> None:
    names = [str(name) for name in data["lanes"]]
    mine = data["event_run"] == k
    for lane in range(len(names)):
        y = len(names) - 1 - lane
        ax.axhspan(y - 0.4, y + 0.4, color="#F6F6F6", linewidth=0, zorder=0)
        for kind in DRAWN:
            rows = mine & (data["event_lane"] == lane) & (data["event_kind"] == kind)
            bars = _bars(data["event_start"][rows], data["event_end"][rows])
            if kind == "generate":
                ax.broken_barh(bars, (y - 0.4, 0.8), facecolors=_VERSIONS(norm(data["event_version"][rows])), lw=0)
            elif kind != "learn":
                ax.broken_barh(bars, (y - 0.4, 0.8), facecolors=COLORS[kind], linewidth=0)
    rows = data["batch_run"] == k
    bars = _bars(data["batch_start"][rows], data["batch_end"][rows])
    version = data["batch_version"][rows]
    for bottom, shown in ((0.0, version), (-0.4, version - data["batch_staleness"][rows])):
        ax.broken_barh(bars, (bottom, 0.4), facecolors=_VERSIONS(norm(shown)), linewidth=0)
    ax.set_yticks(range(len(names)), [_lane_name(name) for name in reversed(names)])
    ax.set_ylim(-0.5, len(names) - 0.5)
    ax.grid(visible=False)


def _draw_key(fig: Figure, data: dict[str, Any], norm: Normalize, scale: Axes) -> None:
    """What colours mean; the colours of the versions are drawn in `scale`."""
    fig.colorbar(ScalarMappable(norm, _VERSIONS), cax=scale, orientation="horizontal").set_label(
        "policy version (updates behind it)", fontsize=9
    )
    words = {"wait": "learner waits", "load_weights": "weights written or loaded", "evaluate": "evaluation"}
    handles = [Patch(color=COLORS[kind], label=label) for kind, label in words.items() if kind in data["event_kind"]]
    handles.append(Line2D([], [], color=OLDEST, marker="_", linestyle="none", label="oldest token of the batch"))
    handles.append(Line2D([], [], color="#444444", linewidth=0.9, linestyle=(0, (4, 2)), label="bound k"))
    anchor = (9.6 / WIDTH, 0.42 / fig.get_size_inches()[1])
    fig.legend(handles=handles, loc="center", bbox_to_anchor=anchor, ncols=3)


def _lane_name(name: str) -> str:
    return name if name == LEARNER else f"worker {name.rsplit('-', 1)[-1]}"


def _bars(start: np.ndarray, end: np.ndarray) -> Sequence[tuple[float, float]]:
    return list(zip(start, end - start, strict=True))


def _draw_batches(ax: Axes, data: dict[str, Any], k: int, bound: int, norm: Normalize) -> None:
    """A bar per update, as high as the mean staleness of its rollouts; the mark above is the largest."""
    rows = data["batch_run"] == k
    start, end = data["batch_start"][rows], data["batch_end"][rows]
    colors = _VERSIONS(norm(data["batch_version"][rows]))
    ax.bar(start, data["batch_staleness"][rows], width=end - start, align="edge", color=colors, linewidth=0)
    ax.plot((start + end) / 2, data["batch_staleness_max"][rows], "_", color=OLDEST, markersize=6, markeredgewidth=1.4)
    ax.axhline(bound, color="#444444", linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_ylim(0, max(bound, 1) * 1.18)
    ax.set_yticks([0, bound] if bound else [0, 1])
    ax.set_ylabel("staleness", fontsize=8.5)
    ax.grid(visible=False, axis="x")


def _draw_shares(ax: Axes, data: dict[str, Any], k: int, last: bool) -> None:
    rows = data["share_run"] == k
    staleness, share = data["share_staleness"][rows], data["share_share"][rows]
    ax.barh(staleness, share, height=0.85, color="#5A7A9A", linewidth=0)
    ax.set_ylim(-0.7, max(int(data["bound"][k]), 1) + 0.7)
    ax.set_xlim(0, 1)
    ax.set_yticks([0, int(data["bound"][k])] if data["bound"][k] else [0, 1])
    ax.set_title(f"mean {float((staleness * share).sum()):.1f}", fontweight="normal", fontsize=9)
    ax.tick_params(labelbottom=last)
    if last:
        ax.set_xlabel("share of rollouts")
