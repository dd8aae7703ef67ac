"""Figure S14: where step sizes tuned elsewhere lost runs: are the methods that lose them bad or only too fast?

Every method at the step size that was tuned from the start of `main`, at half and at a quarter of it.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from matplotlib.figure import Figure

from gmc_core.reporting.figures.needs import Needs
from gmc_core.reporting.figures.step_columns import draw_steps, step_arrays
from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs

NEEDS = Needs(("smaller_steps",))
WORDS = {"weak": "Weak start", "strong": "Strong start", "digits_24": "Responses of 50 tokens"}


def compute(profile: Profile) -> dict[str, Any]:
    """Arrays (method, warm start and step size, seed), NaN where a start has fewer seeds than another."""
    return figure_data(NEEDS.load(profile)["smaller_steps"])


def figure_data(tables: Runs) -> dict[str, Any]:
    """`step_arrays` with the warm starts as columns, by the length of a response, then by accuracy of the start."""
    runs = tables.runs.assign(
        column=[PurePosixPath(model).name for model in tables.runs["model"]],
        initial=tables.runs.groupby("model")["initial_accuracy"].transform("mean"),
        digits=[json.loads(options).get("digits", 0) for options in tables.runs["task_options"]],
    ).sort_values(["digits", "initial"], kind="stable")
    return step_arrays(tables, runs, seed=14) | {"delay": int(runs["delay"].iloc[0])}


def draw(data: dict[str, Any]) -> Figure:
    """Six panels from the values of `figure_data`."""
    words = f"Delay {int(data['delay'])}, step sizes tuned at the warm start of main, halved and quartered"
    return draw_steps(data, WORDS, (words, f"{int(data['updates'])} updates"))
