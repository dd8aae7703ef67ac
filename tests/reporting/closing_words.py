"""What the notebooks say in their closing cells, for the tests that tie those words to data."""

import nbformat

from gmc_core import paths


def closing_text(number, section="## What was seen"):
    """The closing of the notebook of that number, from the heading `section` to what it does not show."""
    (path,) = paths.NOTEBOOKS.glob(f"{number}_*.ipynb")
    cell = nbformat.read(path, as_version=4).cells[-1].source
    return cell[cell.index(section) : cell.index("## What this does not show")]


def bullet(text, start):
    """The one item of a list in `text` that begins with **start."""
    (found,) = [line.split("\n\n")[0] for line in text.split("\n- ") if line.startswith(f"**{start}")]
    return found
