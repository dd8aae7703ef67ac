"""The committed figures of notebooks 01 and 02: rebuilt from scratch, true to their hash, and true to what is said."""

import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt

from gmc_core.reporting.figure_style import estimator_style, load_figure_data
from gmc_core.reporting.figures import figure_module
from gmc_core.reporting.figures.group_weights import draw_groups, slider
from gmc_core.reporting.profiles import get_profile
from tests.reporting.closing_words import closing_text

MINE = ["fig2_geometry", "delayed_gradient", "stale_training"]


@pytest.mark.parametrize("name", ["fig2_geometry", "delayed_gradient"])
def test_committed_data_is_what_the_code_computes(name):
    stored, again = load_figure_data(name), figure_module(name).compute(get_profile("cpu"))
    assert set(stored) == set(again)
    for key, value in stored.items():
        np.testing.assert_allclose(value, again[key], rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", MINE)
def test_figure_can_be_redrawn_from_stored_data(name):
    fig = figure_module(name).draw(load_figure_data(name))
    assert all(ax.has_data() for ax in fig.axes)
    plt.close(fig)


def test_figure_2_shows_the_proposition():
    data = load_figure_data("fig2_geometry")
    least = np.maximum(data["groups_mass"] - 1 - data["epsilon"], 0)
    np.testing.assert_allclose(data["groups_lp"], least, atol=1e-5)
    np.testing.assert_allclose(data["groups_gmc"], least, atol=1e-5)
    np.testing.assert_allclose(data["groups_water_filling"], least, atol=1e-5)
    assert (data["groups_tic_truncate"] >= least - 1e-6).all()
    assert (data["groups_tic_mask"] >= data["groups_tic_truncate"] - 1e-6).all()
    nearest = np.abs(data["line_position"] - 1).argmin()
    assert np.ptp(data["line_distortion"]) < 1e-6
    for key in ("line_angle", "line_kl", "line_worst_shrink"):
        assert abs(int(data[key].argmin()) - int(nearest)) <= 1, key
    assert data["line_second_moment"].argmin() == 0  # water-filling, not GMC


def test_notebook_01_says_what_its_data_say():
    data, text = load_figure_data("stale_training"), closing_text("01")
    verifier, graded = text.split("**At their own best step sizes**")
    for name, rows in zip(data["verifier_names"], data["verifier_common"], strict=True):
        assert f"{rows[-1, 0]:.3f}" in verifier, name
        assert f"{rows[0, 0]:.3f}" in verifier  # without delay
    for name, rows in zip(data["graded_names"], data["graded_best"], strict=True):
        assert f"{rows[-1, 0]:.3f}" in graded, name
    names = data["menu_names"].tolist()
    for name in ("tic_truncate", "tic_mask"):
        for key in ("menu_difference", "graded_over_no_delay"):
            row = (names if key.startswith("menu") else data["graded_names"].tolist()).index(name)
            mean, low, high = data[key][row]
            assert f"{mean:+.3f} [{low:.3f}, {high:.3f}]" in graded and low > 0, (name, key)
    order = ["is", "gmc", "snis", "uncorrected", "tic_truncate", "ppo_clip"]  # of the exploratory run
    finals = dict(zip(data["verifier_names"].tolist(), data["verifier_common"][:, -1, 0], strict=True))
    assert sorted(order, key=finals.get, reverse=True) == order
    assert (data["verifier_best"][:, -1, 0] > 0.995).all()


def test_group_panels_name_every_rule_and_its_distortion():
    fig = draw_groups([4.0])
    (ax,) = fig.axes
    note = ax.texts[0].get_text()
    assert "M = 1.60, least D = 0.40" in note
    assert all(f"D = {d}  {estimator_style(name).label}" in note for name, d in {
        "gmc": "0.40", "water_filling": "0.40", "tic_truncate": "0.80", "tic_mask": "1.40", "snis": "0.60",
    }.items())  # fmt: skip
    plt.close(fig)


def test_sliders_are_built():
    ipywidgets = pytest.importorskip("ipywidgets")
    made = slider()
    assert [child.description for child in made.children if isinstance(child, ipywidgets.FloatSlider)] == [
        "log2 r1",
        "epsilon",
    ]
    plt.close("all")


def test_notebook_02_says_what_the_figure_says():
    data, text = load_figure_data("fig2_geometry"), closing_text("02")
    filling, gmc = (float(np.square(data[f"four_{name}"]).mean()) for name in ("water_filling", "gmc"))
    assert re.search(rf"\({filling:.2f} against {gmc:.2f}\b", text)
