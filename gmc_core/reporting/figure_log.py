"""Which figures a notebook drew: the runner hands its kernel a log file, and `save_figure` names its files there.

Comparing the figures folder before and after would not do: a figure that comes out with the same bytes is not
rewritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LOG_VARIABLE = "GMC_FIGURE_LOG"


def log_figures(files: Iterable[Path]) -> None:
    """Append the absolute paths to `$GMC_FIGURE_LOG`, a line each; nothing happens when it is not set."""
    log = os.environ.get(LOG_VARIABLE)
    if log:
        with open(log, "a", encoding="utf-8") as stream:
            stream.writelines(f"{Path(file).resolve()}\n" for file in files)


def read_log(log: Path) -> list[Path]:
    """The paths in a log, each once, in the order of their first appearance; empty when the log was never written."""
    if not log.exists():
        return []
    return [Path(line) for line in dict.fromkeys(log.read_text(encoding="utf-8").splitlines()) if line]
