"""The committed figures of notebooks 03 and 04: rebuilt, true to their hash, and to what the notebooks say of them."""

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt

from gmc_core.estimators.two_outcomes import TwoOutcomes
from gmc_core.reporting.figure_style import load_figure_data
from gmc_core.reporting.figures import figure_module
from gmc_core.reporting.profiles import get_profile
from gmc_core.theory.slopes import local_log_slopes, log_slope
from tests.reporting.closing_words import closing_text

MINE = ["fig3_bias", "error_budget", "fig4_delay"]


@pytest.mark.parametrize("name", ["error_budget", "fig4_delay"])
def test_committed_data_is_what_the_code_computes(name):
    stored, again = load_figure_data(name), figure_module(name).compute(get_profile("cpu"))
    assert set(stored) == set(again)
    for key, value in stored.items():
        np.testing.assert_allclose(value, again[key], rtol=1e-4, atol=1e-9, err_msg=key)


def test_committed_data_of_figure_3_where_the_smoke_profile_computes_it_too():
    """The same functions at fewer group sizes: the full figure enumerates for longer than a test should."""
    stored, again = load_figure_data("fig3_bias"), figure_module("fig3_bias").compute(get_profile("smoke"))
    assert set(stored) == set(again)
    for sizes, prefix in (("two_sizes", "two_"), ("pair_sizes", "pair_")):
        _, here, there = np.intersect1d(stored[sizes], again[sizes], return_indices=True)
        assert len(here) >= 3
        for key in stored:
            if key.startswith(prefix) and np.shape(stored[key]) == np.shape(stored[sizes]):
                np.testing.assert_allclose(stored[key][here], again[key][there], rtol=1e-5, err_msg=key)
    for k in range(len(stored["sequence_kl"])):
        assert stored[f"sequence_truncate_{k}"] == pytest.approx(again[f"sequence_truncate_{k}"], rel=1e-5)
        assert stored[f"sequence_gmc_{k}"][0] == pytest.approx(float(stored[f"sequence_truncate_{k}"]), rel=1e-5)


@pytest.mark.parametrize("name", MINE)
def test_figure_can_be_redrawn_from_stored_data(name):
    fig = figure_module(name).draw(load_figure_data(name))
    assert all(ax.has_data() for ax in fig.axes)
    plt.close(fig)


def test_figure_3_shows_what_vanishes_and_what_persists():
    data = load_figure_data("fig3_bias")
    for name in ("tic_truncate", "tic_mask"):
        assert np.ptp(data[f"two_{name}"]) < 1e-6 and np.ptp(data[f"pair_{name}"]) < 1e-6
    steepening = local_log_slopes(data["two_sizes"][::8], data["two_gmc"][::8])
    assert (np.diff(steepening) < 0).all()
    assert log_slope(data["two_sizes"][-10:], data["two_snis"][-10:]) == pytest.approx(-1, abs=0.02)
    assert (np.diff(data["pair_gmc"]) < 0).all()


def test_notebook_03_says_what_its_data_say():
    text, pair, case = closing_text("03"), load_figure_data("fig3_bias"), TwoOutcomes()
    for name in ("snis", "gmc"):
        assert f"{abs(case.moments(name, 8).bias):.4f}"[1:] in text
    at = {int(G): i for i, G in enumerate(pair["pair_sizes"])}
    assert f"GMC {pair['pair_gmc'][at[1]]:.3f}".replace("0.", ".") in text
    assert f"{pair['pair_gmc'][at[64]]:.4f}"[1:] in text
    for name, word in (("tic_truncate", "truncation"), ("tic_mask", "masking"), ("ppo_clip", "PPO clip")):
        assert f"{word} {pair[f'pair_{name}'][0]:.3f}".replace("0.", ".") in text
    assert f"{pair['pair_snis'][at[8]]:.3f} against {pair['pair_gmc'][at[8]]:.3f}".replace("0.", ".") in text
    budget = load_figure_data("error_budget")
    prompts = budget["prompts"]
    first = prompts[np.argmax(budget["mse_is"] < np.minimum(budget["mse_gmc"], budget["mse_snis"]))]
    assert 15 < first < 25  # "from about 20 prompts per batch on"
    half = np.argmin(np.abs(budget["kl"] - 0.5))
    assert [round(float(budget[f"crossover_{G}"][half])) for G in (8, 4)] == [2, 5]
    assert budget["crossover_16"][0] > 10 and budget["signal_crossover"][:, 0].mean() > 100  # "tens to hundreds"


def test_notebook_04_says_what_its_data_say():
    text, data = closing_text("04"), load_figure_data("fig4_delay")
    need = dict(zip(data["need_kl"].tolist(), data["need"][:, 0], strict=True))
    for kl, said in ((0.5, 8), (1.0, 28), (2.0, 165), (3.0, 770)):
        assert need[kl] == pytest.approx(said, rel=0.06) and str(said) in text
    assert ((data["need_heuristic"] < data["need"][:, 0]) & (2 * data["need_heuristic"] > data["need"][:, 0])).all()
    assert (data["need_second_moment"] > data["need"][:, 0]).all()
    assert [round(float(G)) for G in data["window_closes"]] == [12, 49]
    assert "$G=12$ at delay 16" in text and "$G=49$ at delay 256" in text
    few = slice(6, None, 2)
    assert log_slope(data["worst_epsilon"][:7], data["worst_tic_truncate"][:7]) == pytest.approx(-2, abs=0.01)
    assert log_slope(data["worst_epsilon"][:7], data["worst_tic_mask"][:7]) == pytest.approx(-3.95, abs=0.05)
    assert log_slope(data["bound_sizes"], data["bound_delay_part"]) == pytest.approx(-0.4, abs=1e-4)
    assert abs(log_slope(data["bound_sizes"][few], data["bound_total"][-1][few])) < 0.001
