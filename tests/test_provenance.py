import subprocess

import pytest

from gmc_core import paths
from gmc_core.provenance import git_state


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a source and a table, both committed."""
    for file in ("gmc_core/code.py", "data/runs/study/runs.csv", "data/model/config.json", "figures/picture.png"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("committed")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "figure_dirty", "run_dirty"),
    [
        ("gmc_core/code.py", True, True),
        ("data/model/config.json", True, True),
        ("data/runs/study/runs.csv", True, False),
        ("data/runs/next_study/runs.csv", True, False),
        ("figures/picture.png", False, False),
    ],
)
def test_tables_are_a_source_of_figures_and_not_of_runs(checkout, file, figure_dirty, run_dirty):
    """Several studies of one command: the tables of the first lie there, not committed, when the second starts."""
    assert git_state()["dirty"] is git_state(without=["data/runs"])["dirty"] is False
    (checkout / file).parent.mkdir(parents=True, exist_ok=True)
    (checkout / file).write_text("changed")
    assert git_state()["dirty"] is figure_dirty
    assert git_state(without=["data/runs"])["dirty"] is run_dirty


def test_outside_a_checkout_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert git_state() == {"commit": None, "dirty": None}
