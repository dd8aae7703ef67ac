"""The generated tables of README.md and of the data card: `python -m gmc_core.reporting.readme_tables` writes them,
`--check` compares.

A table stands between `<!-- name:start -->` and `<!-- name:end -->` and comes from the code it describes: notebooks
from their first cells, metrics from `METRICS`, estimators from `ESTIMATORS` and the docstrings of their functions, the
claims ledger from its rules and the committed data (a few seconds), GPU tiers from their estimates, data sets from
their registry.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import gmc_core.estimators.weights as rules
from gmc_core import ESTIMATORS, METRICS, paths
from gmc_core.reporting.claims import ledger_markdown
from gmc_core.reporting.gpu_table import gpu_tiers_table
from gmc_core.reporting.markdown import markdown_table
from gmc_core.reporting.notebook_files import header, numbered_notebooks, read_notebook
from gmc_core.rollouts.datasets.registry import DATASETS

README = paths.ROOT / "README.md"
DATA_CARD = paths.DATA / "README.md"
_TABLE = re.compile(r"(<!-- (?P<name>\w+):start -->\n).*?(<!-- (?P=name):end -->)", flags=re.DOTALL)


def notebooks_table() -> str:
    """Notebook (linked), the question it answers, time and hardware, from the first cell of each."""
    rows = []
    for path in numbered_notebooks():
        read = header(read_notebook(path), path.name)
        rows.append((f"[{path.stem}](notebooks/{path.name})", read.question, read.time, read.hardware))
    return markdown_table(("notebook", "question", "time", "hardware"), rows)


def metrics_table() -> str:
    """Every logged metric with unit, meaning and what a bad value looks like."""
    rows = ((f"`{name}`", metric.unit, metric.meaning, metric.bad) for name, metric in METRICS.items())
    return markdown_table(("metric", "unit", "meaning", "a bad value"), rows)


def estimators_table() -> str:
    """Every estimator with its function, the first line of that function's docstring, and its defaults."""
    rows = []
    for name, estimator in ESTIMATORS.items():
        function = re.match(r"`(\w+)`(.*)", " ".join(estimator.__doc__.split()))
        rule = getattr(rules, function[1]).__doc__.splitlines()[0].rstrip(".")
        note = function[2].strip(" .:,")
        options = ", ".join(f"{field.name}={field.default:g}" for field in dataclasses.fields(estimator))
        rows.append((f"`{name}`", estimator.level, f"{rule}; {note}" if note else rule, options or "-"))
    return markdown_table(("name", "level", "rule for the detached weight", "defaults"), rows)


def datasets_table() -> str:
    """Every data set of the registry: where it lies, what is read of it, licence, revision, defects."""
    rows = []
    for name, spec in DATASETS.items():
        config = "" if spec.config in (None, "default") else f", config `{spec.config}`"
        splits = ", ".join(f"{split} {rows_of_split:,}" for split, rows_of_split in spec.splits.items())
        form = {"hash": "behind `####`", "boxed": "its last box", "list": "a list"}.get(spec.answer_form)
        columns = f"`{spec.question}`, `{spec.answer}`" + (f" ({form})" if form else "")
        if spec.keep is not None:
            columns += f", `{spec.keep[0]}`"
        rows.append(
            (
                f"`{name}`",
                spec.role,
                f"[{spec.hub_id}](https://huggingface.co/datasets/{spec.hub_id}){config}",
                splits,
                columns,
                spec.verifier,
                f"`{spec.revision[:12]}`" if spec.revision else "not pinned",
                spec.licence,
                spec.defects,
                spec.source,
            )
        )
    columns = ("task", "use", "hub", "rows", "columns", "verifier", "revision", "licence", "known defects", "source")
    return markdown_table(columns, rows)


TABLES: dict[str, Callable[[], str]] = {
    "notebooks": notebooks_table,
    "claims": ledger_markdown,
    "gpu_tiers": gpu_tiers_table,
    "estimators": estimators_table,
    "metrics": metrics_table,
}
DATA_CARD_TABLES: dict[str, Callable[[], str]] = {"datasets": datasets_table}
PAGES = {README: TABLES, DATA_CARD: DATA_CARD_TABLES}


def render(text: str, tables: Mapping[str, Callable[[], str]] = TABLES, page: str = "README") -> str:
    """`text` with every generated table anew. ValueError if a table has no place in it, or a place has no table."""
    places = [match["name"] for match in _TABLE.finditer(text)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"{page} has places for the tables {sorted(places)}; the generated ones are {sorted(tables)}")
    return _TABLE.sub(lambda match: f"{match[1]}{tables[match['name']]()}{match[3]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gmc_core.reporting.readme_tables", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is behind, write nothing")
    options = parser.parse_args(arguments)
    behind = 0
    for path, tables in PAGES.items():
        name, text = path.relative_to(paths.ROOT).as_posix(), path.read_text(encoding="utf-8")
        try:
            renewed = render(text, tables, name)
        except ValueError as error:
            print(f"readme_tables: {error}", file=sys.stderr)
            return 2
        if not options.check:
            path.write_text(renewed, encoding="utf-8")
        elif renewed != text:
            print(f"{name} is behind its sources: run `make readme`", file=sys.stderr)
            behind = 1
    return behind


if __name__ == "__main__":
    sys.exit(main())
