"""Run the numbered notebooks headlessly, in order: `python -m gmc_core.reporting.run_notebooks --profile cpu`.

Every notebook is checked before the first one runs: readable, one literals-only parameters cell, no parameter given
that it does not know. A notebook whose ingredients have not changed (see `notebook_cache`) is kept. A notebook that
fails does not stop the others; the exit code is 1 if any failed, 2 if nothing could be run at all. Committed notebooks
are never written: the executed copies are in `build/notebooks/<profile>/`.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from gmc_core import paths
from gmc_core.reporting import notebook_cache as cache
from gmc_core.reporting import notebook_files as files
from gmc_core.reporting.notebook_execution import NotebookFailed, execute
from gmc_core.reporting.profiles import PROFILES, get_profile

COMPLETE = ("run", "cached")


@dataclass(frozen=True)
class Result:
    """How one notebook ended: `status` is "run", "cached" or "failed"; `seconds` is its time when it last ran."""

    name: str
    status: str
    seconds: float
    figures: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class _Job:
    path: Path
    notebook: nbformat.NotebookNode
    parameters: dict[str, Any]


def plan(folder: Path, only: Iterable[str], profile: str, given: Mapping[str, Any]) -> list[_Job]:
    """The notebooks to run, each checked with its parameters. NotebookError for what would fail or be ignored later."""
    if "profile" in given:
        raise files.NotebookError(
            "the profile is not one of the parameters given; use --profile (profile=... in Python)"
        )
    jobs = []
    for path in files.select(files.numbered_notebooks(folder), only):
        notebook = files.read_notebook(path)
        defaults = files.parameters(notebook, path.name)
        checked = files.check_parameters({"profile": profile, **given}, defaults, path.name)
        jobs.append(_Job(path, notebook, checked))
    return jobs


def run_notebooks(
    profile: str = "cpu",
    *,
    only: Iterable[str] = (),
    parameters: Mapping[str, Any] | None = None,
    force: bool = False,
    output_dir: Path | None = None,
    folder: Path = paths.NOTEBOOKS,
    report: Callable[[str], None] = print,
) -> list[Result]:
    """Run (or keep) the notebooks of `folder` and return one Result each, in order.

    `only` picks notebooks by number or name, `parameters` go to each of them, `force` runs what could be kept,
    `output_dir` receives executed copies and their records. Raises ValueError for an unknown profile, NotebookError (a
    ValueError) before anything runs if a notebook or a parameter is not as it should be.
    """
    get_profile(profile)
    jobs = plan(folder, only, profile, parameters or {})
    output_dir = output_dir or paths.EXECUTED_NOTEBOOKS / profile
    shared = cache.shared_parts()
    results = []
    for number, job in enumerate(jobs, start=1):
        name, executed = job.path.stem, output_dir / job.path.name
        parts = cache.notebook_parts(job.notebook, job.parameters, shared)
        record_file = executed.with_suffix(".json")
        record = cache.read_record(record_file)
        why = "forced" if force else cache.why_run(record, parts, executed)
        prefix = f"[{number}/{len(jobs)}] {name}"
        if not why:
            report(f"{prefix}: cached")
            results.append(Result(name, "cached", record.seconds, record.figures))
            continue
        report(f"{prefix}: running ({why})")
        results.append(_run(job, executed, record_file, parts))
        report(f"{prefix}: {results[-1].status} in {results[-1].seconds:.1f} s")
        if results[-1].error:
            report(f"    {results[-1].error}")
    return results


def _run(job: _Job, executed: Path, record_file: Path, parts: dict[str, str]) -> Result:
    start = time.perf_counter()
    try:
        drawn = execute(job.path, executed, job.parameters)
    except NotebookFailed as error:
        record_file.unlink(missing_ok=True)  # the copy of an earlier run no longer stands for what a run does
        return Result(job.path.stem, "failed", time.perf_counter() - start, error=str(error))
    seconds = round(time.perf_counter() - start, 2)
    figures = [_relative(figure) for figure in drawn]
    cache.write_record(record_file, cache.Record(parts, seconds, figures))
    return Result(job.path.stem, "run", seconds, figures)


def _relative(figure: Path) -> str:
    return figure.relative_to(paths.ROOT).as_posix() if figure.is_relative_to(paths.ROOT) else str(figure)


def summary_table(results: Sequence[Result]) -> str:
    """Notebook, time, what happened, figures: plain text, aligned."""
    rows = [("notebook", "time", "result", "figures")]
    for result in results:
        pictures = [Path(figure).name for figure in result.figures if Path(figure).suffix == ".png"]
        rows.append((result.name, f"{result.seconds:.1f} s", result.status, ", ".join(pictures) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}" for a, b, c, d in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def parse_parameters(items: Iterable[str]) -> dict[str, Any]:
    """`["seeds=4", "lr=1e-6", "name=tiny"]` to Python values: a literal where the text is one, else the text itself.

    papermill's YAML would read 1e-6 as text. Raises NotebookError for an item without `=` or a name given twice.
    """
    values: dict[str, Any] = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator or not name.isidentifier():
            raise files.NotebookError(f"parameter {item!r} is not name=value")
        if name in values:
            raise files.NotebookError(f"parameter {name!r} is given twice")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.reporting.run_notebooks", description=__doc__.split("\n\n")[0]
    )
    profiles = "; ".join(f"{profile.name}: {profile.purpose}" for profile in PROFILES.values())
    parser.add_argument("--profile", default="cpu", help=f"{profiles} (default: cpu)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="numbers or names of the notebooks to run"
    )
    parser.add_argument(
        "--parameters", nargs="+", default=[], metavar="NAME=VALUE", help="values for the parameters cell"
    )
    parser.add_argument("--force", action="store_true", help="run also what has not changed")
    parser.add_argument(
        "--output-dir", type=Path, help="folder of the executed copies (default: build/notebooks/PROFILE)"
    )
    parser.add_argument(
        "--folder", type=Path, default=paths.NOTEBOOKS, help="folder of the notebooks (default: notebooks)"
    )
    options = parser.parse_args(arguments)
    try:
        results = run_notebooks(
            options.profile,
            only=options.only,
            parameters=parse_parameters(options.parameters),
            force=options.force,
            output_dir=options.output_dir,
            folder=options.folder,
            report=lambda line: print(line, flush=True),
        )
    except ValueError as error:
        print(f"run_notebooks: {error}", file=sys.stderr)
        return 2
    print(f"\n{summary_table(results)}")
    failed = [result for result in results if result.status not in COMPLETE]
    print(f"\n{len(results) - len(failed)} of {len(results)} notebooks complete, profile {options.profile}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
