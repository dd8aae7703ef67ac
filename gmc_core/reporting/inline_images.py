"""A figure as a small picture inside a notebook: at most 64 colours, so that a committed notebook stays light."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
from IPython.display import Image as InlineImage
from matplotlib.figure import Figure
from PIL import Image

from gmc_core.reporting.figure_files import stamp_figure

DPI = 90
COLOURS = 64  # thin lines keep their hues; 256 take a sixth more bytes in figure 5, a quarter in figure 6


def inline(fig: Figure, *, dpi: float = DPI, stamp: str | None = None) -> InlineImage:
    """`fig` for display as the value of a cell; the figure is closed, so that it is not shown twice.

    `stamp` is written across it, as `save_figure` does: give `PROFILE.stamp` for a figure that is not saved.

    A figure of thin lines takes a third of the bytes of the usual inline picture. The files that `save_figure` writes
    keep all their colours.
    """
    if stamp:
        stamp_figure(fig, stamp)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    plt.close(fig)
    small = io.BytesIO()
    full = Image.open(buffer).convert("RGB")
    picture = full.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    return InlineImage(small.getvalue())
