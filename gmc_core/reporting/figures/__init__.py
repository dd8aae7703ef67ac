"""Every figure of the project by name: `FIGURES["fig2_geometry"]("cpu")` computes, draws, saves and returns it.

One module per figure, and each module has the same two functions:

- `compute(profile: Profile) -> dict[str, array | number | str]`  every plotted value, nothing drawn;
- `draw(data) -> Figure`  the drawing, from these values alone (also when they come from `load_figure_data`).

A test rebuilds `compute` and compares it with the stored data; a reader redraws a stored figure without computing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

from matplotlib.figure import Figure

from gmc_core.reporting.figure_style import apply_style, save_figure
from gmc_core.reporting.profiles import Profile, get_profile

MODULES: dict[str, str] = {  # figure name -> module of this package
    "fig2_geometry": "geometry",
    "fig3_bias": "bias",
    "fig4_delay": "delay",
    "error_budget": "error_budget",
    "delayed_gradient": "delayed_gradient",
    "stale_training": "stale_training",
}


def figure_module(name: str) -> ModuleType:
    """The module that computes and draws figure `name`. ValueError for an unknown name."""
    if name not in MODULES:
        raise ValueError(f"unknown figure {name!r}; known figures: {', '.join(MODULES)}")
    return import_module(f"{__name__}.{MODULES[name]}")


def build_figure(name: str, profile: str | Profile = "cpu") -> Figure:
    """Compute figure `name`, draw it, save it with `save_figure` and return it for display."""
    module = figure_module(name)
    settings = profile if isinstance(profile, Profile) else get_profile(profile)
    data = module.compute(settings)
    apply_style()
    figure = module.draw(data)
    save_figure(figure, name, data=data, profile=settings)
    return figure


FIGURES: dict[str, Callable[..., Figure]] = {name: partial(build_figure, name) for name in MODULES}
