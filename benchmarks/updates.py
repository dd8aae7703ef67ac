"""Updates per second of whole runs at the reference setting: sampling, scoring, learning, evaluations and records."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gmc_core import RunConfig, train

UPDATES = 100


def measure() -> list[dict]:
    """Runs of 100 updates at delay 0 and 64, after a short one that pays for imports and first calls."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        train(RunConfig(updates=2), root=Path(scratch))
        for delay in (0, 64):
            seconds = train(RunConfig(delay=delay, updates=UPDATES), root=Path(scratch)).provenance["seconds"]
            rows.append(
                {
                    "what": f"gmc, delay {delay}, 8 prompts x 16 rollouts, {UPDATES} updates",
                    "value": UPDATES / seconds["wall"],
                    "unit": "updates / s",
                    "note": f"{seconds['wall']:.1f} s wall, {seconds['cpu']:.1f} s CPU",
                }
            )
    return rows
