"""Renew the committed outputs of light notebooks: `python -m gmc_core.reporting.notebook_outputs 01 02`.

Runs each with the defaults of its parameters cell and writes it back with outputs and counts, without what differs
between machines and runs (timings, patch version of Python, papermill's notes), so a rerun shows as a difference only
where a result changed. A notebook that fails is left as it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from gmc_core import paths
from gmc_core.reporting.notebook_execution import NotebookFailed, execute
from gmc_core.reporting.notebook_files import NotebookError, numbered_notebooks, parameters, read_notebook, select

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
_KEPT_CELL_METADATA = ("tags", "jupyter", "slideshow")


def normalize(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """`notebook`, changed in place, with the metadata that every machine writes alike; cells, outputs, ids stay."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        kept = {name: cell.metadata[name] for name in _KEPT_CELL_METADATA if cell.metadata.get(name)}
        cell.metadata = nbformat.from_dict(kept)
    return notebook


def renew(path: Path, output_dir: Path = paths.EXECUTED_NOTEBOOKS / "renewed") -> None:
    """Run the notebook at `path` with its defaults and replace it in one step; the executed copy is in `output_dir`.

    Raises NotebookError if its parameters cell is not as it should be, NotebookFailed if it does not run to its end.
    """
    parameters(read_notebook(path), path.name)
    executed = output_dir / path.name
    execute(path, executed, {})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    nbformat.write(normalize(read_notebook(executed)), temporary)
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.reporting.notebook_outputs", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("only", nargs="+", help="numbers or names of the notebooks")
    parser.add_argument(
        "--folder", type=Path, default=paths.NOTEBOOKS, help="folder of the notebooks (default: notebooks)"
    )
    parser.add_argument("--output-dir", type=Path, default=paths.EXECUTED_NOTEBOOKS / "renewed")
    options = parser.parse_args(arguments)
    failed = 0
    try:
        for path in select(numbered_notebooks(options.folder), options.only):
            try:
                renew(path, options.output_dir)
                print(f"{path.name}: outputs renewed", flush=True)
            except NotebookFailed as error:
                failed += 1
                print(error, file=sys.stderr, flush=True)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
