"""Notebook 05: what it says is what the committed records say, and its configs for other machines can be made."""

import nbformat
import numpy as np
import pytest

from gmc_core import load_runs, paths
from gmc_core.reporting.figures.live_timeline import SKIP
from gmc_core.reporting.profiles import get_profile
from gmc_core.reporting.run_comparisons import curves
from gmc_core.reporting.timelines import pace_table, staleness_shares

NOTEBOOK = nbformat.read(paths.NOTEBOOKS / "05_asynchronous_loop.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}


def paragraph(start):
    (found,) = [line for line in CELLS["closing"].split("\n- ") if line.startswith(f"**{start}")]
    return found


def listed(values, form):
    *most, last = (format(value, form) for value in values)
    return f"{', '.join(most)} and {last}"


@pytest.fixture(scope="module")
def timeline():
    return load_runs("live_timeline")


@pytest.fixture(scope="module")
def runs(timeline):
    """Rows of the events, the metrics and the ledger of each run, by k."""
    found = {}
    for run in timeline.runs.sort_values("max_staleness").itertuples():
        events, metrics = (table[table["run_id"] == run.run_id] for table in (timeline.events, timeline.metrics))
        found[run.max_staleness] = events, metrics, timeline.ledgers[run.run_id]
    return found


def test_what_is_said_of_overlap(runs):
    text = paragraph("Overlap pays")
    paces = pace_table({k: events for k, (events, _, _) in runs.items()}, skip=SKIP)
    first, *others = paces.itertuples()
    assert f"takes {first.wall:.3f} s, of which generating takes {first.generate:.3f} s and learning" in text
    assert f"learning {first.learn:.3f} s" in text
    assert f"idle for {first.idle / first.wall:.0%}".replace("%", " %") in text
    assert f"waits for {first.wait / first.wall:.0%}".replace("%", " %") in text
    assert [row.Index for row in others] == [1, 4, 16]
    for row in others:
        assert f"$k={row.Index}$ {'the same updates are ' if row.Index == 1 else ''}{row.speed_up:.2f} times" in text
    total = [events.loc[events["kind"] == "learn", "end"].max() for events, _, _ in runs.values()]
    assert f"take {total[0]:.1f} s in turns and {listed(total[1:], '.1f')} s side by side" in text
    means = [sum(age * share for age, share in staleness_shares(ledger).items()) for *_, ledger in runs.values()]
    assert f"{listed(means[1:], '.1f')} updates on average" in text


def test_what_is_said_of_the_bound(runs):
    text = paragraph("The bound is not")
    events, metrics, ledger = runs[16]
    assert f"no rollout was older than {max(staleness_shares(ledger))}" in text
    learned = events[events["kind"] == "learn"].sort_values("start").eval("end - start").to_numpy()
    assert f"({learned[:8].mean():.2f} s an update in the first eight)" in text
    assert f"({learned[-8:].mean():.2f} s in the last eight)" in text
    assert f"queued up, {metrics['queue_length'].max()} at the most" in text
    assert f"the last batch was {metrics['staleness'].iloc[-1]:.1f} updates old" in text
    reward = metrics.sort_values("update")["reward_mean"].to_numpy()
    assert (
        f"mean reward {reward[:8].mean():.2f} in the first eight updates, {reward[-8:].mean():.2f} in the last" in text
    )


def test_what_is_said_of_updates_in_flight(runs):
    text = paragraph("Updates in flight")
    load = {k: e[e["kind"] == "load_weights"].eval("end - start").median() * 1e3 for k, (e, _, _) in runs.items()}
    assert f"takes {load[0]:.0f} ms when little is under way ($k=0$, median) and {load[16]:.0f} ms at $k=16$" in text
    mixed = [f"{100 * metrics['mixed_version_fraction'].mean():.0f} %" for _, metrics, _ in runs.values()]
    assert f"{mixed[1]}, {mixed[2]} and {mixed[3]} ($k=1,4,16$)" in text and mixed[0] == "0 %"


def test_what_is_said_of_the_ledgers(timeline, runs):
    text = paragraph("Nothing was lost")
    for *_, ledger in runs.values():
        assert f"{ledger['issued']} groups were issued and {ledger['counts']['trained']} trained on" in text
        assert ledger["counts"]["dropped"] == ledger["reissued"] == 0
    assert len(runs) == 4 and timeline.provenance["dirty"] is False


def test_what_is_said_of_the_curves():
    text, tables = paragraph("It trains"), load_runs("live_curves")
    labels = {"gmc": "GMC", "tic_truncate": "TIC truncate", "ppo_clip": "PPO clip", "uncorrected": "without correction"}
    accuracy = dict(zip(labels, curves(tables.evaluations, "accuracy", tables.runs, list(labels), 0), strict=True))
    update = np.array(sorted(set(tables.evaluations["update"])))
    final = {name: ", ".join(f"{x:.3f}" for x in rows[:, -1]) for name, rows in accuracy.items()}
    for name, label in labels.items():
        assert f"{label} {final[name]}" in text, name
    half = {name: ", ".join(f"{x:.3f}" for x in rows[:, update == 40].ravel()) for name, rows in accuracy.items()}
    assert f"GMC stood at {half['gmc']}, TIC truncate at {half['tic_truncate']}, PPO clip at {half['ppo_clip']}" in text
    lost = {name: int((rows[:, -1] == 0).sum()) for name, rows in accuracy.items()}
    assert lost == {"gmc": 1, "tic_truncate": 2, "ppo_clip": 0, "uncorrected": 0}
    early = accuracy["uncorrected"][:, (update > 0) & (update <= 40)].min(-1)
    assert (early < 0.5 * accuracy["uncorrected"][:, 0]).all()
    assert (accuracy["uncorrected"][:, -1] > 0.5).all()


@pytest.mark.parametrize("profile", ["smoke", "cpu", "gpu"])
def test_the_config_of_every_profile_can_be_made(profile, capsys):
    names = {"profile": profile}
    exec(CELLS["parameters"].replace('profile = "cpu"', ""), names)
    exec(CELLS["setup"].split("\nPROFILE")[0], names)
    names["PROFILE"] = get_profile(profile)
    exec(CELLS["config"], names)
    config, printed = names["CONFIG"], capsys.readouterr().out
    assert f"engine: {config.engine} (" in printed and (
        "make live" in printed or config.engine == "vllm" or profile == "smoke"
    )
    assert config.is_live and config.in_flight_updates and config.updates > SKIP + max(names["bounds"])
    if profile == "gpu":
        assert (config.model, config.engine, config.device) == (names["gpu_model"], "vllm", "cuda")
        assert config.max_model_len > config.response_limit
