"""Executing one notebook through papermill, so that its executed copy is either complete or says why it is not.

The kernel is the interpreter that runs this code, with the same `gmc_core`, whatever kernelspecs a user has installed.
papermill saves after every cell; that copy lives under a hidden name until the run is over. Then it becomes
`name.ipynb`, or `name.failed.ipynb` beside the last complete copy. A killed process leaves the complete copy untouched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from papermill.exceptions import PapermillExecutionError
from traitlets import default

import gmc_core
from gmc_core.reporting.figure_log import LOG_VARIABLE, read_log

_PACKAGE_PARENT = str(Path(gmc_core.__file__).resolve().parents[1])


class NotebookFailed(RuntimeError):
    """A notebook that did not run to its end. The message names the notebook, the cell and the error."""


class _EndedEarly(Exception):
    """The run stopped before the last cell without an error (`sys.exit(0)` in a cell)."""


class ThisInterpreter(AsyncKernelManager):
    """Starts `sys.executable` as the kernel: a user's own `python3` kernelspec may point to another environment.

    The connection is encrypted where the kernel can do so, which spares the reader a warning per notebook.
    """

    @default("transport_encryption")
    def _encrypt(self) -> str:
        return "auto"

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """os.environ with `changes` (None removes), restored at the end: the kernel inherits it."""
    before = {name: os.environ.get(name) for name in changes}

    def apply(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    apply(changes)
    try:
        yield
    finally:
        apply(before)


def kernel_environment(figure_log: Path) -> dict[str, str | None]:
    """What a kernel sees besides the environment of the runner.

    One thread per process (two on a shared machine are slower than one), no fork warning of tokenizers, and no
    MPLBACKEND, which would hide every inline figure.
    """
    inherited = os.environ.get("PYTHONPATH")
    return {
        LOG_VARIABLE: str(figure_log),
        "MPLBACKEND": None,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join([_PACKAGE_PARENT, *([inherited] if inherited else [])]),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
    }


def execute(path: Path, executed: Path, parameters: Mapping[str, Any]) -> list[Path]:
    """Run the notebook at `path` with `parameters` and write the executed copy to `executed`.

    The parameters must have been checked (`notebook_files.check_parameters`). Returns the figures that it drew.
    Raises NotebookFailed when a cell raised, the kernel died, or the run stopped before the last cell.
    """
    executed.parent.mkdir(parents=True, exist_ok=True)
    running = executed.with_name(f".{executed.stem}.running.ipynb")
    failed = executed.with_name(f"{executed.stem}.failed.ipynb")
    log = executed.with_name(f".{executed.stem}.figures")
    for leftover in (running, log):
        leftover.unlink(missing_ok=True)
    try:
        with _environment(kernel_environment(log)):
            notebook = papermill.execute_notebook(
                str(path),
                str(running),
                parameters=dict(parameters),
                kernel_name="python3",
                kernel_manager_class=ThisInterpreter,
                cwd=str(path.parent),
                progress_bar=sys.stderr.isatty(),
            )
        _check_complete(notebook)
    except Exception as error:  # papermill, nbclient and zmq each have their own; all of them mean: not executed
        if running.exists():
            running.replace(failed)
            where = f"; see {failed.name}"
        else:
            where = ""
        raise NotebookFailed(f"{path.name}, {_describe(error, failed)}{where}") from error
    finally:
        figures = read_log(log)
        log.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    running.replace(executed)
    return figures


def _check_complete(notebook: nbformat.NotebookNode) -> None:
    """Every code cell has been executed: `sys.exit(0)` in the middle counts as success for papermill."""
    for number, cell in enumerate(_code_cells(notebook), start=1):
        if cell.source.strip() and cell.execution_count is None:
            raise _EndedEarly(f"the run ended before code cell {number} ({_first_line(cell)}), and no error was raised")


def _code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _first_line(cell: nbformat.NotebookNode) -> str:
    lines = cell.source.strip().splitlines()
    return f"`{lines[0]}`" if lines else "empty"


def _describe(error: Exception, partial: Path) -> str:
    """Cell number (as printed in the partial copy) and error, on one line."""
    if isinstance(error, PapermillExecutionError):
        first = error.source.strip().splitlines()[0] if error.source.strip() else ""
        return f"cell [{error.exec_count}] (`{first}`): {error.ename}: {' '.join(error.evalue.split())}"
    if isinstance(error, _EndedEarly):
        return str(error)
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not partial.exists():
        return message
    started = [
        f"code cell {number} ({_first_line(cell)}): "
        for number, cell in enumerate(_code_cells(nbformat.read(partial, as_version=4)), start=1)
        if cell.metadata.get("papermill", {}).get("start_time") is not None
    ]
    return (started[-1] if started else "") + message
