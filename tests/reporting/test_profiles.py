"""Profiles: where figures go, which size a notebook takes, and the log that tells the runner what was drawn."""

import pytest

from gmc_core import paths
from gmc_core.reporting.figure_log import LOG_VARIABLE, log_figures, read_log
from gmc_core.reporting.profiles import FIGURES_VARIABLE, PROFILES, get_profile


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    monkeypatch.delenv(FIGURES_VARIABLE, raising=False)
    monkeypatch.delenv(LOG_VARIABLE, raising=False)


def test_smoke_figures_are_stamped_and_never_land_among_the_committed_ones():
    assert get_profile("smoke").stamp == "SMOKE"
    assert get_profile("smoke").figures.is_relative_to(paths.BUILD)
    assert {get_profile(name).figures for name in ("cpu", "gpu")} == {paths.FIGURES}
    assert [get_profile(name).stamp for name in ("cpu", "gpu")] == [None, None]


@pytest.mark.parametrize("name", PROFILES)
def test_figures_of_every_profile_can_be_sent_elsewhere(name, monkeypatch, tmp_path):
    monkeypatch.setenv(FIGURES_VARIABLE, "build/elsewhere")
    assert get_profile(name).figures == paths.ROOT / "build/elsewhere"
    monkeypatch.setenv(FIGURES_VARIABLE, str(tmp_path))
    assert get_profile(name).figures == tmp_path


def test_choose_takes_the_value_of_the_profile_and_gpu_falls_back_to_cpu():
    assert [get_profile(name).choose(smoke=2, cpu=32) for name in ("smoke", "cpu", "gpu")] == [2, 32, 32]
    assert get_profile("gpu").choose(smoke=2, cpu=32, gpu=64) == 64
    with pytest.raises(ValueError, match="no value for profile 'smoke'; given: cpu"):
        get_profile("smoke").choose(cpu=32)
    with pytest.raises(ValueError, match=r"values for \['cup'\], which are no profiles; known: smoke, cpu, gpu"):
        get_profile("cpu").choose(smoke=2, cup=32)


def test_figures_are_logged_once_and_only_when_asked_for(monkeypatch, tmp_path):
    log = tmp_path / "log"
    log_figures([tmp_path / "a.png"])
    assert read_log(log) == []
    monkeypatch.setenv(LOG_VARIABLE, str(log))
    log_figures([tmp_path / "b.png", tmp_path / "b.pdf"])
    log_figures([tmp_path / "a.png", tmp_path / "b.png"])
    assert read_log(log) == [tmp_path / "b.png", tmp_path / "b.pdf", tmp_path / "a.png"]
