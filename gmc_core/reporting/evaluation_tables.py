"""Tables of evaluation files as in papers: `python -m gmc_core.reporting.evaluation_tables FILE ...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gmc_core.reporting.evaluation import BenchmarkResult, compare, holm, macro_average, read_result
from gmc_core.reporting.markdown import markdown_table
from gmc_core.reporting.statistics import Interval


def results_table(
    results: Sequence[BenchmarkResult],
    generator: np.random.Generator,
    k: int | None = None,
    *,
    reference: str | None = None,
    level: float = 0.95,
    plain: bool = False,
) -> str:
    """Methods down, benchmarks across, the macro average last; per cent with intervals, as in papers.

    The best of a column is bold (starred in the plain text). With `reference`, the name of a method, a dagger marks
    cells that differ from it with p < 0.05 in the paired test, Holm-adjusted over all comparisons of the table.
    Under the table: what was asked for, what is missing, what was cut off. Markdown, or aligned text with `plain`.
    ValueError for two results of one method on one benchmark, or an unknown reference.
    """
    cells: dict[tuple[str, str], BenchmarkResult] = {}
    for result in results:
        key = (result.settings["method"], result.settings["task"])
        if key in cells:
            raise ValueError(f"two results of method {key[0]!r} on {key[1]!r}; give their plans different method names")
        cells[key] = result
    methods, tasks = (list(dict.fromkeys(key[part] for key in cells)) for part in (0, 1))
    if reference is not None and reference not in methods:
        raise ValueError(f"reference {reference!r} is none of the methods {', '.join(methods)}")
    marked = _different(cells, reference, generator, k) if reference is not None else set()
    columns: dict[str, dict[str, Interval]] = {
        task: {m: cells[m, task].interval(generator, k, level=level) for m in methods if (m, task) in cells}
        for task in tasks
    }
    if len(tasks) > 1:
        columns["average"] = {
            method: macro_average([cells[method, task] for task in tasks], generator, k, level=level)
            for method in methods
            if all((method, task) in cells for task in tasks)
        }
    rows = []
    for method in methods:
        row = [method]
        for name, column in columns.items():
            if method not in column:
                row.append("-")
                continue
            best = len(column) > 1 and column[method].estimate == max(value.estimate for value in column.values())
            row.append(_cell(column[method], best, (method, name) in marked, plain))
        rows.append(row)
    header = ["method", *(_heading(task, cells, k) for task in tasks), *(["average"] if len(tasks) > 1 else [])]
    table = _aligned([header, *rows]) if plain else markdown_table(header, rows)
    return table + "\n" + _notes(cells, level, reference, bool(marked))


def _different(
    cells: Mapping[tuple[str, str], BenchmarkResult], reference: str, generator: np.random.Generator, k: int | None
) -> set[tuple[str, str]]:
    pairs = [key for key in cells if key[0] != reference and (reference, key[1]) in cells]
    p_values = [compare(cells[key], cells[reference, key[1]], generator, k).p_value for key in pairs]
    return {key for key, p_value in zip(pairs, holm(p_values), strict=True) if p_value < 0.05}


def _heading(task: str, cells: Mapping[tuple[str, str], BenchmarkResult], k: int | None) -> str:
    of_task = [result for key, result in cells.items() if key[1] == task]
    samples = sorted({result.samples for result in of_task})
    greedy = all(result.settings["temperature"] == 0 for result in of_task)
    what = "greedy" if greedy else f"pass@{k}" if k is not None else "avg@" + "/".join(map(str, samples))
    problems = "/".join(map(str, sorted({result.problems for result in of_task})))
    return f"{task}, {what} ({problems} problems)"


def _cell(value: Interval, best: bool, marked: bool, plain: bool) -> str:
    text = f"{100 * value.estimate:.1f}"
    if best:
        text = f"*{text}" if plain else f"**{text}**"
    if marked:
        text += "†"
    return text if value.few else f"{text} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]]) + "\n"


def _notes(cells: Mapping[tuple[str, str], BenchmarkResult], level: float, reference: str | None, marked: bool) -> str:
    lines = [f"Per cent [{100 * level:g} % bootstrap interval over problems]."]
    if reference is not None:
        found = "† differs from" if marked else "No cell differs from"
        lines.append(f"{found} {reference} (paired sign-flip test, Holm-adjusted p < 0.05).")
    for (method, task), result in cells.items():
        remarks = []
        if result.missing:
            remarks.append(f"{result.missing} of {result.problems * result.samples} responses missing")
        if result.faults:
            remarks.append(f"{result.faults} verifications failed")
        if result.truncated_fraction > 0.01:
            remarks.append(f"{result.truncated_fraction:.0%} cut off at {result.settings['max_new_tokens']} tokens")
        if remarks:
            lines.append(f"{method} on {task}: {', '.join(remarks)}.")
    if any(result.missing or result.faults for result in cells.values()):
        lines.append("Missing responses and failed verifications are failures.")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.reporting.evaluation_tables", description="A table of evaluation files."
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--k", type=int, help="pass@k instead of the average over samples")
    parser.add_argument("--reference", help="the method that the others are tested against")
    parser.add_argument("--plain", action="store_true", help="aligned text instead of Markdown")
    options = parser.parse_args(arguments)
    try:
        results = [read_result(file) for file in options.files]
        generator = np.random.default_rng(0)
        print(results_table(results, generator, options.k, reference=options.reference, plain=options.plain), end="")
    except (OSError, ValueError) as error:
        print(f"evaluation_tables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
