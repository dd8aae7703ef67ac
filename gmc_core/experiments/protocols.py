"""Protocols go into `data/runs/<experiment>/protocol.md` before an experiment is run, so that git dates them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from gmc_core import paths
from gmc_core.experiments.experiment import Experiment
from gmc_core.files import write_atomically


def write_protocols(experiments: Iterable[Experiment], root: Path | None = None) -> list[Path]:
    """Write the protocol of every experiment that has no tables yet; returns the files that changed.

    An experiment with tables keeps the protocol that they were made under. `smoke` has none worth keeping.
    """
    changed = []
    for experiment in experiments:
        folder = (root or paths.COMMITTED_RUNS) / experiment.name
        path = folder / "protocol.md"
        if experiment.name == "smoke" or (folder / "provenance.json").exists():
            continue
        if path.exists() and path.read_text(encoding="utf-8") == experiment.protocol:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, experiment.protocol.encode())
        changed.append(path)
    return changed


def fill(text: str, width: int = 120) -> str:
    """Markdown whose paragraphs and list items are broken anew at `width`: names and numbers put into them vary."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        starts = not line or line.startswith(("- ", "#")) or not blocks or not blocks[-1][0]
        if starts:
            blocks.append([line])
        else:
            blocks[-1].append(line.strip())
    filled = [
        textwrap.fill(
            " ".join(block),
            width,
            subsequent_indent="  " if block[0].startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for block in blocks
    ]
    return "\n".join(filled) + "\n"
