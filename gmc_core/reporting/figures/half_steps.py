"""Figure S15: half of the tuned step size, from the start of `main`: which runs it saves, and what it costs."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.step_columns import draw_steps, step_arrays
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs

NEEDS = Needs(("half_steps",))


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, delay and step size, seed)."""
    return figure_data(NEEDS.load(profile)["half_steps"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`step_arrays` with the delays as columns."""
    runs = tables.runs.sort_values("delay", kind="stable")
    return step_arrays(tables, runs.assign(column=[f"delay {delay}" for delay in runs["delay"]]), seed=15)


def draw(data: dict[str, Any]) -> Figure:
    """Four panels from the values of `figure_data`."""
    words = {str(column): str(column).capitalize() for column in data["columns"]}
    return draw_steps(data, words, ("Step sizes tuned by area, and half of them", f"{int(data['updates'])} updates"))
