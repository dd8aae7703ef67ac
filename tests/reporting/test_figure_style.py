"""The style names every estimator once, and a figure's bytes and metadata follow from its data and drawing."""

import hashlib
import itertools
import json
import re

import matplotlib
import matplotlib.colors
import matplotlib.font_manager
import numpy as np
import pytest
import torch

matplotlib.use("agg")
import matplotlib.pyplot as plt
from PIL import Image

from gmc_core.estimators import ESTIMATORS
from gmc_core.reporting import figure_style as style
from gmc_core.reporting.figure_files import PNG_HASH_KEY, canonical_data, decode_data, render

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB -> linear RGB seen with each deficiency.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(color: str, deficiency: str) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as seen with a deficiency."""
    srgb = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(DEFICIENCIES[deficiency]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(to_xyz @ seen / np.array([0.95047, 1.0, 1.08883]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GMC_FIGURES", str(tmp_path))
    return tmp_path


def a_figure(height=1.0):
    style.apply_style()
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [0, height], **style.estimator_style("gmc").line())
    ax.set_title(r"Group mass $M = \frac{1}{G}\sum_i r_i$")
    plt.close(fig)
    return fig


def test_every_estimator_has_its_own_look():
    assert set(style.ESTIMATOR_STYLE) == set(ESTIMATORS)
    looks = list(style.ESTIMATOR_STYLE.values())
    for field in ("label", "color", "marker"):
        assert len({getattr(look, field) for look in looks}) == len(looks), field
    assert style.estimator_style("gmc").linewidth > max(s.linewidth for s in looks if s.label != "GMC")


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_headline_estimators_are_told_apart(deficiency):
    """By colour alone (difference above 10 in L*a*b*; about 2 is just visible), or by colour and line together."""
    for a, b in itertools.combinations(style.HEADLINE, 2):
        first, second = style.ESTIMATOR_STYLE[a], style.ESTIMATOR_STYLE[b]
        gap = np.linalg.norm(lab(first.color, deficiency) - lab(second.color, deficiency))
        assert gap > 10 or (gap > 5 and first.linestyle != second.linestyle), (a, b, gap)


def test_unknown_estimator_names_the_known_ones():
    with pytest.raises(ValueError, match=r"no style for estimator 'gcm'.*gmc"):
        style.estimator_style("gcm")


def test_text_uses_the_font_that_matplotlib_carries():
    style.apply_style()
    assert matplotlib.font_manager.findfont(matplotlib.font_manager.FontProperties(family=["sans-serif"])).startswith(
        matplotlib.get_data_path()
    )


def test_same_figure_same_bytes_and_untouched_files(folder):
    data = {"y": torch.tensor([0.0, 1.0]), "n": 32}
    paths = style.save_figure(a_figure(), "demo", data=data, profile="cpu")
    assert [p.name for p in paths] == ["demo.png", "demo.pdf", "demo.data.json", "demo.json"]
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}
    paths[0].unlink()
    side = json.loads(paths[3].read_text())
    style.save_figure(a_figure(), "demo", data=data, profile="cpu")  # drawn again: the lost picture comes back
    assert paths[0].read_bytes() == before[paths[0]][0]
    for path in paths[1:3]:
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before[path]
    assert json.loads(paths[3].read_text())["data_sha256"] == side["data_sha256"]
    side_bytes = paths[3].read_bytes()
    style.save_figure(a_figure(), "demo", data=data, profile="cpu")
    assert paths[3].read_bytes() == side_bytes


def test_the_last_bits_of_a_coordinate_do_not_change_the_bytes():
    generator = np.random.default_rng(0)
    pixels = generator.uniform(100, 400, (2, 2000))
    last_bits = generator.uniform(-1e-12, 1e-12, pixels.shape)

    def drawn(shift):
        fig, ax = plt.subplots()
        ax.plot(*(pixels + shift), "o", transform=None)
        files = render(fig, "0" * 64, "markers")
        plt.close(fig)
        return files

    assert drawn(last_bits) == drawn(0.0)
    assert drawn(1e-4)["pdf"] != drawn(0.0)["pdf"]


def test_new_drawing_or_new_data_is_written(folder):
    png, _, stored, side = style.save_figure(a_figure(), "demo", data={"y": [0.0, 1.0]}, profile="cpu")
    first = png.read_bytes()
    style.save_figure(a_figure(height=2.0), "demo", data={"y": [0.0, 1.0]}, profile="cpu")
    assert png.read_bytes() != first
    old_hash = json.loads(side.read_text())["data_sha256"]
    style.save_figure(a_figure(height=2.0), "demo", data={"y": [0.0, 2.0]}, profile="cpu")
    new_hash = json.loads(side.read_text())["data_sha256"]
    assert new_hash != old_hash
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == new_hash


def test_data_hash_is_in_both_pictures_and_provenance_beside(folder):
    data = {"y": np.linspace(0, 1, 7), "label": ["a", "b"]}
    png, pdf, stored, side = style.save_figure(a_figure(), "demo", data=data, profile="cpu")
    digest = style.data_hash(data)
    assert Image.open(png).info[PNG_HASH_KEY] == digest
    assert re.search(rb"/Keywords \(data-sha256=([0-9a-f]{64})\)", pdf.read_bytes()).group(1).decode() == digest
    assert b"/CreationDate" not in pdf.read_bytes()
    record = json.loads(side.read_text())
    assert (
        record["data_sha256"] == digest and record["profile"] == "cpu" and record["arrays"] == {"label": [2], "y": [7]}
    )
    assert {"commit", "dirty", "versions"} <= set(record) and record["versions"]["matplotlib"] == matplotlib.__version__
    np.testing.assert_allclose(style.load_figure_data("demo", "cpu")["y"], data["y"], rtol=1e-5)
    assert stored.read_bytes() == canonical_data(data)


def test_smoke_profile_is_stamped_and_goes_to_scratch(monkeypatch):
    from gmc_core import paths
    from gmc_core.reporting.profiles import get_profile

    monkeypatch.delenv("GMC_FIGURES", raising=False)
    assert get_profile("smoke").figures.is_relative_to(paths.SMOKE)
    assert not get_profile("cpu").figures.is_relative_to(paths.SMOKE)


def test_smoke_stamp_is_drawn_once(folder):
    fig = a_figure()
    png = style.save_figure(fig, "demo", data={"y": [1.0]}, profile="smoke")[0]
    style.save_figure(fig, "demo", data={"y": [1.0]}, profile="smoke")
    assert [text.get_text() for text in fig.texts] == ["SMOKE"]
    smoke = png.read_bytes()
    png = style.save_figure(a_figure(), "demo", data={"y": [1.0]}, profile="cpu")[0]
    assert png.read_bytes() != smoke


def test_stored_values_survive_rounding_nan_and_infinity():
    data = {"x": [np.nan, np.inf, -np.inf, -0.0, 1 / 3, 1e-300], "i": torch.arange(3), "ok": True, "name": "gmc"}
    back = decode_data(canonical_data(data))
    np.testing.assert_allclose(back["x"], [np.nan, np.inf, -np.inf, 0.0, 0.333333, 1e-300], rtol=1e-12)
    assert back["i"].dtype.kind == "i" and back["ok"].item() is True and back["name"].item() == "gmc"
    # noise below the sixth digit is another machine's rounding, not other data
    assert style.data_hash({"x": [0.1234567]}) == style.data_hash({"x": [0.1234567 + 1e-12]})
    assert style.data_hash({"x": [0.1234567]}) != style.data_hash({"x": [0.1234667]})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"profile": "cpuu"}, ValueError, "unknown profile 'cpuu'.*smoke, cpu, gpu"),
        ({"name": "a/b"}, ValueError, "plain file name"),
        ({"data": {}}, ValueError, "needs the plotted arrays"),
        ({"data": {"x": {"nested": 1}}}, TypeError, "figure data 'x'"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(folder, arguments, error, message):
    call = {"name": "demo", "data": {"y": [1.0]}, "profile": "cpu"} | arguments
    name = call.pop("name")
    with pytest.raises(error, match=message):
        style.save_figure(a_figure(), name, **call)
    assert list(folder.iterdir()) == []


def test_mean_interval_is_students():
    mean, low, high, n = style.mean_interval([[1.0], [2.0], [3.0]])
    assert n == 3
    np.testing.assert_allclose(
        [mean[0], low[0], high[0]], [2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5], rtol=1e-6
    )
    assert np.isnan(style.mean_interval([[1.0]])[1]).all()


def test_band_says_n_and_shows_single_samples_when_few():
    fig, ax = plt.subplots()
    drawn = style.band(ax, [0, 1], [[0.0, 1.0], [2.0, 3.0], [1.0, 2.0]], "gmc")
    assert len(ax.lines) == 4
    assert ax.lines[-1].get_label() == "GMC (n = 3 seeds, mean, 95 % interval)"
    np.testing.assert_allclose(drawn["mean"], [1.0, 2.0])
    style.band(ax, [0, 1], np.zeros((5, 2)), "is", unit=None)
    assert len(ax.lines) == 5 and ax.lines[-1].get_label() == "full IS"
    with pytest.raises(ValueError, match=r"shape \(n, 3\)"):
        style.band(ax, [0, 1, 2], np.zeros((5, 2)), "is")
    plt.close(fig)
