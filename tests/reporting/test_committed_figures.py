"""Every committed figure: registered, of the data that the committed records give, and the same bytes when drawn again.

Figures of exact results are recomputed in the tests of their notebooks.
"""

import hashlib
import json

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt

from gmc_core import paths
from gmc_core.reporting.figure_files import decode_data, render
from gmc_core.reporting.figure_style import apply_style
from gmc_core.reporting.figures import FIGURES, FROM_RECORDS, available, figure_module
from gmc_core.reporting.figures.catalogue import check_files
from gmc_core.reporting.profiles import get_profile

CPU = get_profile("cpu")
COMMITTED = [name for name in FIGURES if (paths.FIGURES / f"{name}.data.json").exists()]


def test_what_can_be_drawn_is_committed_and_nothing_else():
    found = {path.name.split(".")[0] for path in paths.FIGURES.iterdir()}
    assert found == set(COMMITTED) == {name for name in FIGURES if available(name)}


@pytest.mark.parametrize("name", [name for name in COMMITTED if name in FROM_RECORDS])
def test_committed_data_is_what_the_tables_give(name):
    stored = decode_data((paths.FIGURES / f"{name}.data.json").read_bytes())
    again = figure_module(name).compute(CPU)
    assert set(stored) == set(again)
    for key, value in stored.items():
        if value.dtype.kind in "US":
            assert value.tolist() == np.asarray(again[key]).tolist()
        else:
            np.testing.assert_allclose(value, again[key], rtol=1e-5, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("name", COMMITTED)
def test_drawing_again_gives_the_committed_bytes(name):
    raw = (paths.FIGURES / f"{name}.data.json").read_bytes()
    apply_style()
    fig = figure_module(name).draw(decode_data(raw))
    kinds = ("png", "pdf") if name in FROM_RECORDS else ("png",)
    files = render(fig, hashlib.sha256(raw).hexdigest(), name, kinds=kinds)
    plt.close(fig)
    for kind, content in files.items():
        assert content == (paths.FIGURES / f"{name}.{kind}").read_bytes(), f"draw {name} again: `make figures`"
    assert check_files(name, CPU) == hashlib.sha256(raw).hexdigest()
    assert json.loads((paths.FIGURES / f"{name}.json").read_text(encoding="utf-8"))["profile"] == CPU.name
