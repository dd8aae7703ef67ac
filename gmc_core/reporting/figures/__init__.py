"""Every figure of the project by name: `FIGURES["fig2_geometry"]("cpu")` computes, draws, saves and returns it.

One module per figure, and each module has the same two functions,

- `compute(profile: Profile) -> dict[str, array | number | str]`  every plotted value, nothing drawn;
- `draw(data) -> Figure`  the drawing, from these values alone (also when they come from `load_figure_data`),

and, if it is computed from the tables of experiments, `NEEDS`, which says of which (`needs.Needs`). As long as those
are not complete the figure waits: `available` is False, `build_figure` raises FileNotFoundError, nothing is drawn.

`MODULES` holds the numbered figures and the companions of notebooks 01 and 03; `SUPPLEMENTARY` one figure per study of
the staleness laboratory; `FIGURES` all of them. A test rebuilds `compute` and compares it with the stored data;
`redraw_figure` draws a stored figure without computing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from gmc_core.reporting.figure_files import canonical_data, decode_data
from gmc_core.reporting.figure_style import apply_style, load_figure_data, save_figure
from gmc_core.reporting.profiles import Profile, get_profile

MODULES: dict[str, str] = {  # figure name -> module of this package
    "fig1_timeline": "live_timeline",
    "fig2_geometry": "geometry",
    "fig3_bias": "bias",
    "fig4_delay": "delay",
    "fig5_staleness": "staleness",
    "fig6_dynamics": "training_dynamics",
    "error_budget": "error_budget",
    "delayed_gradient": "delayed_gradient",
    "stale_training": "stale_training",
}
SUPPLEMENTARY: dict[str, str] = {  # the studies (b) to (g), then what the main comparison is made of, then the rest
    "figS1_optimizer": "optimizer",
    "figS2_group_size": "group_size",
    "figS3_threshold": "threshold",
    "figS4_length": "length",
    "figS5_starting_accuracy": "starting_accuracy",
    "figS6_advantage": "advantage",
    "figS7_step_sizes": "step_sizes",
    "figS8_profiles": "menu_profiles",
    "figS9_mean_and_shape": "mean_and_shape",
    "figS10_fidelity": "fidelity",
    "figS11_mixture": "mixture",
    "figS12_dead_zone": "dead_zone",
    "figS13_model_fidelity": "model_fidelity",
    "figS14_smaller_steps": "smaller_steps",
    "figS15_half_steps": "half_steps",
}
FROM_RECORDS = ("fig1_timeline", "fig5_staleness", "fig6_dynamics", *SUPPLEMENTARY)


def figure_module(name: str) -> ModuleType:
    """The module that computes and draws figure `name`. ValueError for an unknown name."""
    modules = MODULES | SUPPLEMENTARY
    if name not in modules:
        raise ValueError(f"unknown figure {name!r}; known figures: {', '.join(modules)}")
    return import_module(f"{__name__}.{modules[name]}")


def available(name: str, profile: str | Profile = "cpu") -> bool:
    """Whether figure `name` can be drawn now: the complete tables of an experiment that it shows are there."""
    if name not in FROM_RECORDS:
        figure_module(name)  # raises for an unknown name
        return True
    settings = profile if isinstance(profile, Profile) else get_profile(profile)
    return bool(figure_module(name).NEEDS.found(settings))


def build_figure(name: str, profile: str | Profile = "cpu") -> Figure:
    """Compute figure `name`, draw it, save it with `save_figure` and return it for display.

    Raises FileNotFoundError, naming the experiments to run, for a figure whose tables are not complete.
    """
    settings = profile if isinstance(profile, Profile) else get_profile(profile)
    return _draw_and_save(name, figure_module(name).compute(settings), settings)


def redraw_figure(name: str, profile: str | Profile = "cpu") -> Figure:
    """Draw figure `name` from its stored data, save it and return it; nothing is computed.

    Raises FileNotFoundError when the profile has no stored data of it (`build_figure` computes them).
    """
    return _draw_and_save(name, load_figure_data(name, profile), profile)


def _draw_and_save(name: str, data: dict[str, Any], profile: str | Profile) -> Figure:
    """Drawn from the data as they are stored, rounded: the same bytes whether computed now or loaded."""
    apply_style()
    figure = figure_module(name).draw(decode_data(canonical_data(data)))
    save_figure(figure, name, data=data, profile=profile)
    return figure


FIGURES: dict[str, Callable[..., Figure]] = {name: partial(build_figure, name) for name in MODULES | SUPPLEMENTARY}
