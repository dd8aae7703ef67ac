"""What every stored figure shows and which data it holds, with its files checked against each other."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from PIL import Image

from gmc_core.reporting.figure_files import PNG_HASH_KEY
from gmc_core.reporting.figures import FROM_RECORDS, MODULES, figure_module
from gmc_core.reporting.profiles import Profile

if TYPE_CHECKING:
    import pandas as pd


def shows(name: str) -> str:
    """The first sentence of the docstring of the figure's module."""
    sentence = figure_module(name).__doc__.split("\n\n")[0].split(". ")[0]
    return " ".join(sentence.split()).rstrip(".")


def check_files(name: str, profile: Profile) -> str:
    """The data hash of figure `name`, after checking that picture, document and side file carry it.

    Raises FileNotFoundError if a file is missing, ValueError naming the file that belongs to other data.
    """
    folder = profile.figures
    digest = hashlib.sha256((folder / f"{name}.data.json").read_bytes()).hexdigest()
    found = {
        f"{name}.png": Image.open(folder / f"{name}.png").info.get(PNG_HASH_KEY),
        f"{name}.json": json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["data_sha256"],
    }
    if f"data-sha256={digest}".encode() not in (folder / f"{name}.pdf").read_bytes():
        found[f"{name}.pdf"] = None
    for file, other in found.items():
        if other != digest:
            raise ValueError(f"{file} was not made from {name}.data.json ({digest[:12]}); draw the figure again")
    return digest


def figure_table(profile: Profile) -> pd.DataFrame:
    """One row per figure: name, what it shows, what it is computed from, first 12 digits of its data hash."""
    import pandas as pd

    rows = [
        (name, shows(name), "records" if name in FROM_RECORDS else "exact results", check_files(name, profile)[:12])
        for name in MODULES
    ]
    return pd.DataFrame(rows, columns=["figure", "shows", "from", "data hash"]).set_index("figure")
