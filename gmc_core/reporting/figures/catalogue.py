"""What every figure shows, which data it holds or waits for, with its files checked against each other.

`python -m gmc_core.reporting.figures.catalogue` lists the figures that wait for experiments (`make figures` calls it).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from PIL import Image

from gmc_core.reporting.figure_files import PNG_HASH_KEY
from gmc_core.reporting.figures import FIGURES, FROM_RECORDS, figure_module
from gmc_core.reporting.figures.needs import command
from gmc_core.reporting.profiles import Profile, get_profile

if TYPE_CHECKING:
    import pandas as pd


def shows(name: str) -> str:
    """The first sentence of the docstring of the figure's module."""
    sentence = figure_module(name).__doc__.split("\n\n")[0].split(". ")[0]
    return " ".join(sentence.split()).rstrip(".")


def made_from(name: str, profile: Profile) -> str:
    """What figure `name` is drawn from in this profile, and what it waits for, in words."""
    if name not in FROM_RECORDS:
        return "exact results"
    needs = figure_module(name).NEEDS
    found, missing = needs.found(profile), needs.waits_for(profile)
    if not found:
        return f"waits for `{command(missing)}`" if missing else "not in this profile"
    shown = f"records of {', '.join(found)}"
    return f"{shown}, until `{command(missing)}`" if missing else shown


def waiting(profile: Profile) -> dict[str, str]:
    """Figures that show less than they are for, or nothing yet: what each of them is made from and waits for."""
    return {name: made_from(name, profile) for name in FROM_RECORDS if figure_module(name).NEEDS.waits_for(profile)}


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
    """One row per figure: name, what it shows, what it is made from, first 12 digits of its data hash ("" if it waits).

    Raises ValueError for a figure that has to wait and yet has files: they show other records than those that are here.
    """
    import pandas as pd

    rows = []
    for name in FIGURES:
        drawn = name not in FROM_RECORDS or bool(figure_module(name).NEEDS.found(profile))
        if not drawn and (profile.figures / f"{name}.data.json").exists():
            raise ValueError(f"{name} has files but {made_from(name, profile)}; delete them or complete its records")
        rows.append((name, shows(name), made_from(name, profile), check_files(name, profile)[:12] if drawn else ""))
    return pd.DataFrame(rows, columns=["figure", "shows", "from", "data hash"]).set_index("figure")


def main() -> None:
    """Print one line per figure that waits for experiments, in the profile `cpu`."""
    found = waiting(get_profile("cpu"))
    print("Every figure shows what it is for." if not found else "Figures that wait for records:")
    for name, words in found.items():
        print(f"  {name:26}{words}")


if __name__ == "__main__":
    main()
