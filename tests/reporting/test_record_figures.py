"""Figures of records that may not exist yet: drawn from made-up tables, waiting without, switching when complete."""

import itertools
import json
import shutil

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import FigureBase
from matplotlib.legend import Legend
from matplotlib.text import Text

from gmc_core import load_runs, paths
from gmc_core.reporting.figure_files import canonical_data, decode_data
from gmc_core.reporting.figure_style import apply_style
from gmc_core.reporting.figures import (
    FIGURES,
    FROM_RECORDS,
    MODULES,
    SUPPLEMENTARY,
    advantage,
    available,
    figure_module,
    optimizer,
)
from gmc_core.reporting.figures.catalogue import figure_table, made_from, main, waiting
from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.profiles import get_profile
from gmc_core.reporting.step_sizes import choose_step_sizes, common_step_size, split_by_choice
from gmc_core.reporting.study_arrays import by_cell, interval_rows, keep_better
from gmc_core.training.run_directory import DamagedRecordError
from tests.reporting.made_up_tables import NOTE, made_up

CPU = get_profile("cpu")
NEEDED = tuple(dict.fromkeys(name for figure in FROM_RECORDS for name in figure_module(figure).NEEDS.final))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Complete made-up tables of every experiment that a figure needs."""
    root = tmp_path_factory.mktemp("made_up")
    for experiment in ("main_tuning", "main", "mixture_tuning", *NEEDED):
        if not (root / experiment).exists():
            made_up(experiment, root)
    return root


@pytest.fixture
def records(tables, monkeypatch, tmp_path):
    """The made-up tables stand for the committed ones, and figures go to a scratch folder."""
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tables)
    monkeypatch.setenv("GMC_FIGURES", str(tmp_path / "figures"))
    return tables


@pytest.fixture(scope="module")
def computed(tables):
    """The data of every figure of records, computed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "COMMITTED_RUNS", tables)
        return {name: figure_module(name).compute(CPU) for name in FROM_RECORDS}


def drawn(name, data):
    apply_style()
    return figure_module(name).draw(decode_data(canonical_data(data)))


def texts_of(fig):
    """Every text that a drawing shows; of tick labels those whose tick is in view."""
    for part in fig.findobj(FigureBase):
        yield from part.texts
        for legend in part.legends:
            yield from legend.get_texts()
    for ax in fig.findobj(plt.Axes):
        if not ax.axison:
            continue
        yield from (child for child in ax.get_children() if isinstance(child, Text))
        for legend in ax.findobj(Legend):
            yield from legend.get_texts()
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            in_view = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            yield from (axis.label, *(tick.label1 for tick in in_view), *(tick.label2 for tick in in_view))


def misplaced(fig):
    """Texts of a drawing that leave the canvas, and pairs that cover each other (slanted ones are not compared)."""
    fig.draw_without_rendering()
    found, boxes = [], []
    for text in dict.fromkeys(texts_of(fig)):
        if not text.get_visible() or not text.get_text().strip():
            continue
        box = text.get_window_extent()
        if box.x0 < -1 or box.y0 < -1 or box.x1 > fig.bbox.width + 1 or box.y1 > fig.bbox.height + 1:
            found.append((text.get_text(), "leaves the canvas"))
        if text.get_rotation() in (0, 90):
            boxes.append((text.get_text(), box))
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            found.append((first, second))
    return found


@pytest.mark.parametrize("name", FROM_RECORDS)
def test_every_figure_of_records_is_drawn_and_its_texts_are_legible(name, computed):
    fig = drawn(name, computed[name])
    assert all(ax.has_data() or not ax.axison for ax in fig.findobj(plt.Axes))
    assert misplaced(fig) == []
    plt.close(fig)


def test_misplaced_texts_are_seen():
    fig, ax = plt.subplots()
    assert misplaced(fig) == []
    ax.annotate("one", (0.5, 0.5), xycoords="axes fraction")
    ax.annotate("two", (0.51, 0.5), xycoords="axes fraction")
    fig.text(0.99, 0.5, "outside")
    assert misplaced(fig) == [("outside", "leaves the canvas"), ("one", "two")]
    plt.close(fig)


# --- figure 5 and 6: two states ---


def set_complete(tables, root, experiment, complete):
    """Copy tables to another root and mark them as complete or as still growing."""
    shutil.copytree(tables / experiment, root / experiment, dirs_exist_ok=True)
    path = root / experiment / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": complete}))


def test_figure_5_shows_fresh_runs_at_the_tuned_step_sizes_beside_one_step_size(tables, computed):
    data = computed["fig5_staleness"]
    tuning, fresh = load_runs("main_tuning", root=tables).runs, load_runs("main", root=tables).runs
    names, delays = list(data["names"]), data["delay"].tolist()
    choice = choose_step_sizes(tuning).set_index(["estimator", "delay"])
    for name, delay in (("gmc", 64), ("tic_mask", 8), ("vespo", 64), ("uncorrected", 0)):
        where, row = (names.index(name), delays.index(delay)), choice.loc[(name, delay)]
        assert (data["step_size"][where], data["edge"][where]) == (row["step_size"], row["edge"])
        own = fresh.query(f"estimator == '{name}' and delay == {delay} and learning_rate == {row['step_size']}")
        np.testing.assert_array_equal(data["final"][where], own.sort_values("seed")["final_accuracy"])
        mean, low, high = data["final_mean"][where]
        assert mean == pytest.approx(own["final_accuracy"].mean()) and low <= mean <= high
    gmc = names.index("gmc")
    np.testing.assert_array_equal(data["area_difference"][gmc, 1:], 0)
    assert np.isnan(data["final"][names.index("gspo"), delays.index(8)]).all()  # not run there, so not shown
    rate = data["common_rate"]
    assert rate == common_step_size(tuning[tuning["delay"] > 0])
    common = tuning.query(f"estimator == 'gmc' and delay == 64 and learning_rate == {rate}")
    assert data["common_final"][gmc, delays.index(64)][0] == common["final_accuracy"].item()
    fig = drawn("fig5_staleness", data)
    text = fig.get_suptitle()
    assert "own tuned step size" in text and "fresh seeds, n = 5 seeds, mean, 95 % interval" in text
    assert f"step size {rate:g} for all, n = 1 or 2 seeds, every seed shown: not a verdict" in text
    plt.close(fig)


def test_figures_5_and_6_say_what_they_show_until_the_comparison_is_complete(tables, tmp_path, monkeypatch):
    (tmp_path / "first_staleness").symlink_to(paths.COMMITTED_RUNS / "first_staleness")
    (tmp_path / "main_tuning").symlink_to(tables / "main_tuning")
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    set_complete(tables, tmp_path, "main", False)
    for name in ("fig5_staleness", "fig6_dynamics"):
        data = figure_module(name).compute(CPU)
        assert data["experiment"] == "first_staleness"
        assert made_from(name, CPU) == "records of first_staleness, until `make experiments ONLY=main`"
        fig = drawn(name, data)
        assert "ommon step size 0.2, not tuned per method" in fig.get_suptitle()
        plt.close(fig)
    set_complete(tables, tmp_path, "main", True)
    for name in ("fig5_staleness", "fig6_dynamics"):
        assert "main" in figure_module(name).compute(CPU)["experiment"]
        assert made_from(name, CPU).startswith("records of main_tuning, main")


def test_figure_6_shows_the_chosen_runs_at_the_largest_delay(tables, computed):
    data = computed["fig6_dynamics"]
    assert data["delay"] == 128 and len(data["names"]) == len(data["learning_rate"]) == 10
    chosen, _ = split_by_choice(load_runs("main", root=tables).runs, load_runs("main_tuning", root=tables).runs)
    own = chosen.query("estimator == 'snis' and delay == 128").sort_values("seed")
    np.testing.assert_array_equal(
        data["accuracy"][data["names"].index("snis"), :, -1], own["final_accuracy"].astype("float32")
    )
    fig = drawn("fig6_dynamics", data)
    assert "own tuned step size" in fig.get_suptitle() and "not tuned" not in fig.get_suptitle()
    plt.close(fig)


# --- waiting ---


def test_a_figure_without_records_waits_and_says_for_what(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    monkeypatch.setenv("GMC_FIGURES", str(tmp_path / "figures"))
    for name in FROM_RECORDS:
        assert not available(name)
        with pytest.raises(FileNotFoundError, match="make experiments ONLY="):
            FIGURES[name]("cpu")
    assert not (tmp_path / "figures").exists()
    main()
    listed = capsys.readouterr().out
    assert all(name in listed for name in FROM_RECORDS) and "`make experiments ONLY=group_size`" in listed
    assert made_from("figS8_profiles", CPU) == 'waits for `make experiments ONLY="main_tuning main"`'
    assert made_from("fig2_geometry", CPU) == "exact results" and available("fig2_geometry")
    with pytest.raises(ValueError, match="unknown figure 'fig7'"):
        available("fig7")


def test_tables_that_still_grow_are_not_drawn(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path)
    set_complete(tables, tmp_path, "group_size", False)
    assert not available("figS2_group_size")
    with pytest.raises(FileNotFoundError, match="`make experiments ONLY=group_size` computes them"):
        figure_module("figS2_group_size").compute(CPU)
    set_complete(tables, tmp_path, "group_size", True)
    assert available("figS2_group_size")
    (tmp_path / "group_size" / "provenance.json").write_text("{")
    with pytest.raises(DamagedRecordError, match="make experiments ONLY=group_size"):
        available("figS2_group_size")


def test_nothing_waits_once_everything_is_complete(records):
    assert waiting(CPU) == {} and all(available(name) for name in FIGURES)
    assert NOTE in (records / "main" / "protocol.md").read_text()


def test_files_of_a_waiting_figure_are_an_error(tmp_path, monkeypatch):
    """The committed records and figures, but for one experiment that only one figure needs."""
    name, experiment = "figS4_length", "length"
    for variable, source in (("figures", paths.FIGURES), ("runs", paths.COMMITTED_RUNS)):
        (tmp_path / variable).mkdir()
        for file in source.iterdir():
            if not file.name.startswith(f"{name}.") and file.name != experiment:
                (tmp_path / variable / file.name).symlink_to(file)
    monkeypatch.setenv("GMC_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setattr(paths, "COMMITTED_RUNS", tmp_path / "runs")
    table = figure_table(CPU)
    drawn_now = [figure for figure in FIGURES if available(figure)]
    assert [figure for figure in FIGURES if table.loc[figure, "data hash"]] == drawn_now
    assert set(FIGURES) - set(drawn_now) == {name}
    (tmp_path / "figures" / f"{name}.data.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{name} has files but waits for"):
        figure_table(CPU)


def test_smoke_reads_its_own_records_only():
    smoke = get_profile("smoke")
    assert Needs(("main",), until_then=("first_staleness",)).waits_for(smoke) == ()
    assert made_from("figS1_optimizer", smoke) == "not in this profile" and not available("figS1_optimizer", "smoke")
    assert set(SUPPLEMENTARY).isdisjoint(MODULES)


# --- what the figures of studies are made of ---


def runs_of(**columns):
    return pd.DataFrame({"run_id": [f"run{k}" for k in range(len(next(iter(columns.values()))))]} | columns)


def test_cells_and_their_intervals():
    runs = runs_of(method=["a", "a", "b"], setting=[4, 8, 4], seed=[2, 1, 1], value=[0.5, 0.25, 1.0])
    values = by_cell(runs, "value", ["a", "b"], [4, 8])
    np.testing.assert_array_equal(values, [[[np.nan, 0.5], [0.25, np.nan]], [[1.0, np.nan], [np.nan, np.nan]]])
    means = interval_rows(values, np.random.default_rng(0))
    assert means[0, 0, 0] == 0.5 and np.isnan(means[1, 1, 0]) and np.isnan(means[..., 1:]).all()
    with pytest.raises(ValueError, match=r"2 runs share method, setting and seed .*run0: a, 4, seed 2"):
        by_cell(runs.assign(setting=4, seed=2), "value", ["a"], [4])
    wide, narrow = (interval_rows(np.arange(8.0)[None], np.random.default_rng(0), level=p)[0] for p in (0.99, 0.8))
    assert wide[1] < narrow[1] < 3.5 < narrow[2] < wide[2]


def test_the_better_step_size_is_kept_and_of_equal_ones_the_smaller():
    runs = runs_of(
        method=["a"] * 4 + ["b"] * 2,
        setting=[1] * 6,
        learning_rate=[0.1, 0.1, 0.2, 0.2, 0.2, 0.1],
        area_under_curve=[0.9, 0.1, 0.4, 0.7, 0.5, 0.5],
    )
    assert keep_better(runs)["run_id"].tolist() == ["run2", "run3", "run5"]


def test_learners_and_variants_are_told_apart_in_words(tables):
    runs = load_runs("optimizer", root=tables).runs
    words = optimizer.learners(runs)
    assert set(words) == {
        "SGD, clip 0.3", "SGD, no clip", "SGD, length ≤ 0.03", "SGD, length ≤ 0.1", "SGD, length ≤ 0.03, step × 2",
        "SGD, length ≤ 0.03, step × 4", "AdamW 3e-5", "AdamW 1e-4", "AdamW 3e-4, length ≤ 0.03",
    }  # fmt: skip
    assert len(set(zip(words, runs["estimator"], runs["seed"], strict=True))) == len(runs)
    words = advantage.variants(load_runs("advantage", root=tables).runs)
    assert list(dict.fromkeys(words)) == [
        "as in main", "mean-centred", "length-corrected", "mean over a response's tokens", "mean over all tokens",
        "cap not detached", "mean-centred, cap not detached",
    ]  # fmt: skip


def test_settings_stand_in_their_natural_order(computed):
    assert list(computed["figS2_group_size"]["settings"]) == ["4", "8", "16", "32", "64"]
    assert list(computed["figS3_threshold"]["settings"]) == ["0", "0.1", "0.2", "0.5", "1", "3"]
    assert list(computed["figS4_length"]["settings"]) == ["14", "26", "50"]
    start = computed["figS5_starting_accuracy"]
    assert list(start["settings"]) == ["weak", "tiny_qwen3", "strong"] and (np.diff(start["initial"]) > 0).all()


def test_parts_of_a_step_size_stand_in_columns(computed):
    smaller, half = computed["figS14_smaller_steps"], computed["figS15_half_steps"]
    assert smaller["columns"] == ["weak", "strong", "digits_24"] and half["columns"] == ["delay 16", "delay 64"]
    assert smaller["parts"] == ["tuned", "half", "quarter"] and half["parts"] == ["tuned", "half"]
    for steps in (smaller, half):
        assert list(steps["settings"]) == [f"{column} {part}" for column in steps["columns"] for part in steps["parts"]]
        rates = steps["learning_rate"].reshape(len(steps["names"]), len(steps["columns"]), -1)
        expected = np.broadcast_to([1, 2, 4][: len(steps["parts"])], rates.shape)
        np.testing.assert_allclose(rates[..., :1] / rates, expected, rtol=5e-3)
    assert np.isnan(smaller["area"][:, 6:, 2:]).all() and np.isfinite(half["area"]).all()


def test_usable_step_sizes_need_a_score_above_the_start(tables):
    found = load_runs("main_tuning", root=tables)
    lost = found.runs["estimator"].eq("cispo") & found.runs["delay"].eq(128)
    runs = found.runs.assign(area_under_curve=found.runs["area_under_curve"].where(~lost, 0.01))
    data = figure_module("figS7_step_sizes").figure_data(type(found)("main_tuning", runs, None, None, {}))
    where = data["names"].index("cispo"), data["delay"].tolist().index(128)
    assert np.isnan(data["low"][where]) and np.isfinite(data["chosen"][where])
    gmc = data["names"].index("gmc")
    assert (data["low"][gmc, 1:] <= data["high"][gmc, 1:]).all() and np.isnan(data["chosen"][gmc, 0])


def test_mixtures_are_compared_with_and_without_correction(computed):
    data = computed["figS11_mixture"]
    assert data["names"] == ["gmc", "mixture 0.1", "mixture 0.2", "mixture 0.5"] and data["comparisons"] == 6
    assert data["edge"].shape == (4, 2) and data["learning_rate"].shape == (4, 2)
    for key in ("final", "area"):
        plain, corrected = data[f"{key}_difference_mean"][1:], data[f"{key}_corrected"][1:]
        assert (corrected[..., 1] < plain[..., 1]).all() and (plain[..., 2] < corrected[..., 2]).all()


def test_relative_bias_of_resolved_probes_and_their_median(tables, computed):
    data, probes = computed["figS10_fidelity"], load_runs("fidelity", root=tables)
    rows = probes.probes.merge(
        probes.runs[["run_id", "delay", "seed", "estimator"]]
        .rename(columns={"estimator": "driver"})
        .astype({"run_id": str}),
        on="run_id",
    )
    (own,) = rows.query(
        "estimator == 'snis' and delay == 64 and group_size == 16 and update == 32 and seed == 11 and driver == 'gmc'"
    ).to_dict("records")
    probe = list(zip(data["driver"], data["seed"], data["update"], strict=True)).index(("gmc", 11, 32))
    snis = data["rules"].index("snis")
    assert data["bias"][snis, 1, 1, probe] == pytest.approx(own["bias_squared"] / own["fresh_norm_squared"])
    assert data["cosine"][snis, 1, 1, probe] == own["cosine"]
    last = data["update"] == data["update"].max()
    assert data["runs"] == last.sum() == 4
    for name in ("bias", "variance", "cosine", "update_cosine"):  # the last probe has next to no fresh gradient
        assert np.isnan(data[name][..., last]).all() and np.isfinite(data[name][..., ~last]).all()
        np.testing.assert_allclose(data[f"{name}_median"][..., 0], np.nanmedian(data[name], -1))
    assert (data["resolved"] == (~last).sum()).all()
