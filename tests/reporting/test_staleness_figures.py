"""Figures 5 and 6 and notebooks 06 and 08: rebuilt from the committed tables, true to what is said, and in smoke."""

import re
import shutil

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt

from gmc_core import load_runs, paths, train
from gmc_core.experiments.grids import get_experiment
from gmc_core.reporting.dead_zone import before_first_stretch, dead_stretches
from gmc_core.reporting.figure_files import canonical_data, decode_data
from gmc_core.reporting.figures import (
    FIGURES,
    FROM_RECORDS,
    MODULES,
    available,
    figure_module,
    redraw_figure,
    staleness,
)
from gmc_core.reporting.figures.catalogue import check_files, figure_table
from gmc_core.reporting.figures.live_run import draw_live_run, same_updates
from gmc_core.reporting.figures.training_dynamics import running_mean
from gmc_core.reporting.inline_images import inline
from gmc_core.reporting.profiles import get_profile
from gmc_core.reporting.run_comparisons import falls_table
from gmc_core.reporting.run_records import write_tables
from tests.reporting.closing_words import bullet, closing_text

CPU = get_profile("cpu")


@pytest.fixture(scope="module")
def tables():
    return load_runs("first_staleness")


@pytest.fixture(scope="module")
def common(tables):
    """What the first picture at one common step size plots: figure 5 until the tuned comparison is complete."""
    return decode_data(canonical_data(staleness.figure_data(tables)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GMC_FIGURES", str(tmp_path / "figures"))
    return tmp_path / "figures"


def test_every_figure_belongs_to_its_data_and_notebook_08_draws_it():
    table = figure_table(CPU)
    assert list(table.index) == list(FIGURES)
    assert table.loc["fig5_staleness", "from"].startswith("records of ")
    source = (paths.NOTEBOOKS / "08_paper_figures.ipynb").read_text()
    assert [name for name in MODULES if f'picture(\\"{name}\\")' not in source] == []
    assert "for name in SUPPLEMENTARY:" in source and "available(name, PROFILE)" in source


def test_a_picture_of_other_data_is_named(folder):
    folder.mkdir()
    for file in paths.FIGURES.glob("fig2_geometry.*"):
        shutil.copy(file, folder)
    assert len(check_files("fig2_geometry", CPU)) == 64
    stored = folder / "fig2_geometry.data.json"
    stored.write_bytes(stored.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(ValueError, match=r"fig2_geometry\.png was not made from fig2_geometry\.data\.json"):
        check_files("fig2_geometry", CPU)


@pytest.mark.parametrize("name", ["fig5_staleness"])  # the pictures of all: test_committed_figures
def test_drawing_from_stored_data_gives_the_same_bytes(name, folder):
    plt.close(FIGURES[name]("cpu"))
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert len(before) == 4
    for file in folder.glob("*.p*"):
        file.unlink()
    plt.close(redraw_figure(name, "cpu"))
    assert {file: file.read_bytes() for file in folder.iterdir() if file in before and "json" not in file.name} == {
        file: content for file, content in before.items() if "json" not in file.name
    }


def test_the_first_picture_shows_every_run_of_the_tables(tables, common):
    data = common
    assert data["final"].shape == (8, 3, 3) and not np.isnan(data["final"]).any()
    assert np.isnan(data["final_mean"][..., 1:]).all()  # three seeds: no interval
    for row in tables.runs.itertuples():
        where = data["names"].tolist().index(row.estimator), data["delay"].tolist().index(row.delay), row.seed
        assert data["final"][where] == pytest.approx(row.final_accuracy, abs=1e-5)
        assert data["area"][where] == pytest.approx(row.area_under_curve, abs=1e-5)
    gmc = data["names"].tolist().index("gmc")
    assert not data["area_difference"][gmc].any()


def test_the_first_picture_says_that_it_is_no_verdict_and_shows_intervals_from_five_seeds_on(common):
    data = common
    fig = staleness.draw(data)
    assert fig.get_suptitle().startswith("Common step size 0.2, not tuned per method: not a verdict")
    assert "n = 3 seeds, every seed shown" in fig.get_suptitle()
    plt.close(fig)
    many = {key: np.repeat(v, 2, -1) if key in ("final", "area", "collapsed") else v for key, v in data.items()}
    many |= {f"{key}_difference": np.repeat(data[f"{key}_difference"], 2, -1) for key in ("final", "area")}
    for key in ("final", "area", "final_difference", "area_difference"):
        many[f"{key}_mean"] = np.stack([data[f"{key}_mean"][..., 0] + d for d in (0, -0.01, 0.01)], -1)
    fig = staleness.draw(many)
    assert "n = 6 seeds, mean, 95 % interval" in fig.get_suptitle()
    plt.close(fig)


def test_collapse_by_the_protocol(tables):
    """The column of the tables agrees, except for runs that never rose above their start: those have collapsed too."""
    both = tables.runs.merge(falls_table(tables), on="run_id", suffixes=("", "_counted"))
    differ = both[both["collapsed"].astype(bool) != both["collapsed_counted"]]
    assert (differ["collapsed_counted"] & (differ["best_accuracy"] < differ["initial_accuracy"])).all()


def test_running_mean_uses_the_past_only():
    np.testing.assert_allclose(running_mean(np.array([1.0, 3.0, 5.0, 7.0]), 3), [1, 2, 3, 5])
    gap = running_mean(np.array([[1.0, np.nan, 5.0]]), 2)
    np.testing.assert_allclose(gap, [[1, np.nan, 5]])


def test_inline_pictures_are_light_and_shown_once():
    before = plt.get_fignums()
    picture = inline(redraw_figure("fig6_dynamics", "cpu"))
    assert picture.data.startswith(b"\x89PNG") and len(picture.data) < 300_000
    assert plt.get_fignums() == before


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The tables of the smoke experiment, computed here, in the scratch folder of the smoke profile."""
    root = tmp_path_factory.mktemp("smoke")
    experiment = get_experiment("smoke")
    records = [train(config, root=root / "records") for config in experiment.configs]
    write_tables("smoke", experiment.version, experiment.protocol, records, root=root / "runs")
    return root, records


@pytest.mark.parametrize("name", ["fig5_staleness", "fig6_dynamics", "figS12_dead_zone"])
def test_smoke_figures_read_the_scratch_records(name, smoke, monkeypatch, folder):
    monkeypatch.setattr(paths, "SMOKE", smoke[0])
    assert [each for each in FROM_RECORDS if available(each, "smoke")] == [
        "fig5_staleness", "fig6_dynamics", "figS12_dead_zone"
    ]  # fmt: skip
    data = figure_module(name).compute(get_profile("smoke"))
    assert data["experiment"] == "smoke" and list(data["names"]) == ["gmc", "tic_truncate", "uncorrected"]
    fig = FIGURES[name]("smoke")
    assert "SMOKE" in [text.get_text() for text in fig.texts]
    plt.close(fig)


def test_live_run_beside_its_committed_run(smoke):
    root, records = smoke
    found = load_runs("smoke", root=root / "runs")
    assert same_updates(records[0], found) == 4
    records[0].metrics[2]["reward_mean"] += 0.125
    assert same_updates(records[0], found) == 2
    fig = draw_live_run(records[0], found)
    assert len(fig.axes) == 2
    plt.close(fig)
    with pytest.raises(ValueError, match="the tables of first_staleness have no run gmc-delay0-seed0"):
        same_updates(records[0], load_runs("first_staleness"))


# --- the words of notebook 06 ---


def paragraph(start):
    return bullet(closing_text("06"), start)


@pytest.fixture(scope="module")
def data(common):
    found = common
    names, delays = found["names"].tolist(), found["delay"].tolist()

    def value(key, name, delay):
        return found[key][names.index(name), delays.index(delay)]

    return value


def test_what_is_said_of_the_noise(data, common):
    text, names = paragraph("The noise"), common["names"].tolist()
    for key in ("final", "area"):
        seeds = np.stack([data(key, name, 0) for name in names])
        assert f"{np.ptp(seeds, axis=0).max():.3f}" in text
        for name in ("tic_truncate", "tic_mask", "is"):
            assert (data(key, name, 0) == data(key, "gmc", 0)).all()
    runs = load_runs("first_staleness").with_config("evaluations").query("delay == 0 and seed == 2 and update == 20")
    assert len(runs) == 8 and runs["accuracy"].between(0.15, 0.25).all()


def test_what_is_said_of_delay_64(data):
    text = paragraph("Delay 64")
    for name in ("gmc", "tic_truncate", "is", "snis"):
        final, area = (data(f"{key}_mean", name, 64)[0] for key in ("final", "area"))
        assert re.search(rf"{final:.3f} \((?:area )?{area:.3f}\)", text), name
    assert (
        f"PPO clip ends at {data('final', 'ppo_clip', 64).mean():.3f} ({data('area', 'ppo_clip', 64).mean():.3f})"
        in text
    )
    truncate = -data("area_difference", "tic_truncate", 64)
    assert (truncate > 0).all() and "by " + ", ".join(f"{x:.3f}" for x in truncate) in text
    level = max(np.abs(data("area_difference", name, 64)).max() for name in ("is", "snis"))
    assert f"largest difference in one seed {level:.3f}" in text
    lost = {name: int(data("collapsed", name, 64).sum()) for name in ("gmc", "tic_truncate", "is", "snis", "ppo_clip")}
    assert not any(lost.values())
    assert [int(data("collapsed", name, 64).sum()) for name in ("tic_mask", "cispo", "uncorrected")] == [2, 3, 3]


def test_what_is_said_of_delay_32(data, common):
    text = paragraph("Delay 32")
    first, second, third = data("final", "gmc", 32)
    assert f"{first:.3f}, {second:.3f} and **{third:.3f}**" in text
    for name in ("tic_truncate", "ppo_clip"):
        assert f"({data('final', name, 32).mean():.3f}" in text
    lost = {name: int(data("collapsed", name, 32).sum()) for name in common["names"].tolist()}
    assert lost == {
        "gmc": 1, "tic_truncate": 0, "tic_mask": 2, "is": 3, "snis": 1, "ppo_clip": 0, "cispo": 3, "uncorrected": 2
    }  # fmt: skip
    finals = {name: data("final", name, 32).mean() for name in lost}
    assert max(finals, key=finals.get) == "tic_truncate"
    areas = {name: data("area", name, 32).mean() for name in lost}
    assert max(areas, key=areas.get) == "gmc"
    assert f"({areas['gmc']:.3f} against {areas['tic_truncate']:.3f})" in text


def test_what_is_said_of_the_lost_run(tables):
    text = paragraph("How a run is lost")
    metrics = tables.with_config("metrics").query("delay == 32 and estimator == 'gmc' and seed == 2")
    rows = metrics.set_index("update")
    assert abs(rows.loc[82, "log_mass_mean"]) < 0.05 and round(rows.loc[84, "log_mass_mean"]) == -24 and "-24" in text
    assert rows.loc[82:84, "weight_max"].max() < 1.2 and (rows.loc[[82, 83], "update_length"] > 0.9 * 0.06).all()
    assert (rows.loc[84:, "weight_mean"] < 1e-3).mean() > 0.9
    low = tables.with_config("metrics").query("delay == 32 and log_mass_mean < -5")
    assert len(low.query("estimator == 'gmc' and seed == 0")) == 2  # and that run ends at 0.934
    assert low.query("estimator in ['gmc', 'snis', 'is']").groupby(["estimator", "seed"])["update"].min().min() == 68
    evaluations = tables.with_config("evaluations").query("delay == 32 and estimator == 'tic_truncate' and seed == 1")
    low = evaluations.set_index("update")["accuracy"]
    assert f"accuracy {low[90]:.3f} at update 90" in text and low[100] > 0.9


def test_what_is_said_of_the_dead_zone(tables):
    text, stale = paragraph("The dead zone"), tables.runs[tables.runs["delay"] > 0]
    stretches = dead_stretches(tables.metrics.astype({"run_id": str}))
    first = stretches.drop_duplicates("run_id")
    ended = set(stretches.loc[~stretches["escaped"].astype(bool), "run_id"])
    left = set(first["run_id"]) - ended
    fallen = set(falls_table(tables).query("collapsed")["run_id"])
    assert set(first["run_id"]) <= set(stale["run_id"])
    assert f"Of {len(stale)} runs with stale rollouts {len(first)} entered it" in text
    entered = stale[stale["run_id"].isin(first["run_id"])].groupby("estimator").size().to_dict()
    assert entered == {
        "gmc": 1, "tic_truncate": 1, "tic_mask": 6, "is": 3, "snis": 1, "cispo": 6, "uncorrected": 6
    }  # fmt: skip
    assert stale["estimator"].value_counts()["cispo"] == 6 and "all 18 of TIC mask, CISPO and no correction" in text
    assert fallen <= set(first["run_id"]) and f"All {len(fallen)} runs that collapsed are among them" in text
    assert f"{len(ended)} ended in it" in text
    assert f"{len(left & fallen)} of the {len(left)} that left had collapsed" in text
    least, most = first["longest_length"].min(), tables.metrics["update_length"].max()
    assert least >= 0.051 and "of length 0.051 or more" in text and most == pytest.approx(0.06, rel=1e-3)
    early = before_first_stretch(tables.metrics, stale)
    long, short = early[early["update_length"] >= 0.05], early[early["update_length"] < 0.05]
    assert f"of {len(long)} of length 0.05 or more {long['followed'].sum()} were followed" in text
    assert f"({100 * long['followed'].mean():.1f} %)" in text
    assert f"of {len(short)} shorter ones {short['followed'].sum()} ({100 * short['followed'].mean():.1f} %)" in text
    counts = long.groupby("estimator")["followed"].agg(["sum", "size"])
    assert "without correction {} of {} long".format(*counts.loc["uncorrected"]) in text
    assert counts.loc["ppo_clip", "sum"] == 0 and f"none of {counts.loc['ppo_clip', 'size']}" in text


def test_what_is_said_of_mean_weights(tables):
    text = paragraph("Mean weights")
    early = tables.with_config("metrics").query("delay == 64 and 21 <= update <= 64")
    for name, word in (("gmc", "for GMC"), ("tic_truncate", "for truncation"), ("tic_mask", "for masking")):
        assert f"{early[early['estimator'] == name]['weight_mean'].mean():.2f} {word}" in text


def test_what_is_said_beside_the_exploratory_run(data):
    text = paragraph("Beside the exploratory run")
    ours = text[text.index("Ours agree") :]
    for name, delay in (("gmc", 0), ("gmc", 64), ("tic_truncate", 64), ("ppo_clip", 64), ("cispo", 64)):
        pair = " / ".join(f"{data(key, name, delay).mean():.3f}"[1:] for key in ("final", "area"))
        assert pair in ours, (name, delay)
    assert data("final", "uncorrected", 64).max() == 0
