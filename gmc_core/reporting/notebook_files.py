"""Reading the numbered notebooks: which there are, what their parameters are, what their first cell says.

Used by the runner, by the README's table and by the hygiene test, so all three mean the same by "a parameters cell".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from gmc_core import paths

PARAMETERS_TAG = "parameters"
_NUMBERED = re.compile(r"(\d\d)_\w+\.ipynb")
_LABELS = ("Question", "Time", "Hardware")
_HEADER_LINE = (
    r"\*\*{label}[.:]?\*\*[.:]?\s*(?P<text>.+?)[\s·|]*"
    rf"(?:\n\s*\n|\Z|(?=\s(?:[-*]\s+)?\*\*(?:{'|'.join(_LABELS)})\b))"
)


class NotebookError(ValueError):
    """A notebook that cannot be run as it is; the message names the notebook and says how to mend it."""


@dataclass(frozen=True)
class Header:
    """What the first cell of a notebook promises its reader."""

    title: str
    question: str
    time: str
    hardware: str


def numbered_notebooks(folder: Path = paths.NOTEBOOKS) -> list[Path]:
    """The notebooks `NN_name.ipynb` of `folder` by number. NotebookError if there is none, or a number occurs twice."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.ipynb")):
        match = _NUMBERED.fullmatch(path.name)
        if not match:
            continue
        if match[1] in found:
            raise NotebookError(f"number {match[1]} is taken twice: {found[match[1]].name} and {path.name}; rename one")
        found[match[1]] = path
    if not found:
        raise NotebookError(f"no notebook called NN_name.ipynb in {folder}")
    return list(found.values())


def select(notebooks: Iterable[Path], only: Iterable[str]) -> list[Path]:
    """Those named in `only` by number ("02" or "2"), stem or file name, in the order of `notebooks`.

    All of them if `only` is empty. NotebookError for a name that no notebook answers to.
    """
    notebooks, wanted = list(notebooks), list(only)
    names = {path: {path.name, path.stem, path.name[:2], path.name[:2].lstrip("0")} for path in notebooks}
    unknown = [name for name in wanted if not any(name in known for known in names.values())]
    if unknown:
        known = ", ".join(path.stem for path in notebooks)
        raise NotebookError(
            f"no notebook answers to {', '.join(map(repr, unknown))}; give a number or name of: {known}"
        )
    return [path for path in notebooks if not wanted or names[path] & set(wanted)]


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path`. NotebookError if it is missing or no valid notebook."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise NotebookError(f"{path.name}: no such notebook in {path.parent}") from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError, AttributeError) as error:
        raise NotebookError(f"{path.name} is not a readable notebook: {str(error).splitlines()[0]}") from error
    return notebook


def parameters(notebook: nbformat.NotebookNode, name: str) -> dict[str, Any]:
    """Names and default values in the one cell tagged `parameters`.

    The cell may hold only `name = literal` lines: whatever it derived would be computed from the defaults, before the
    runner's values are injected below it. NotebookError if there is no such cell, or two, or something else in it.
    """
    tagged = [cell for cell in notebook.cells if PARAMETERS_TAG in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0].cell_type != "code":
        raise NotebookError(
            f"{name} has {len(tagged)} cells tagged {PARAMETERS_TAG!r}; exactly one code cell must carry the tag, "
            "otherwise the values given to the runner are overwritten by the defaults"
        )
    try:
        statements = ast.parse(tagged[0].source).body
    except SyntaxError as error:
        raise NotebookError(f"{name}: the parameters cell is not valid Python: {error}") from error
    values: dict[str, Any] = {}
    for statement in statements:
        target, value = _assignment(statement)
        try:
            values[target] = ast.literal_eval(value)
        except (ValueError, TypeError):
            raise NotebookError(
                f"{name}: the parameters cell holds {ast.unparse(statement)!r}; only `name = literal` may stand there, "
                "derive everything else in the next cell"
            ) from None
    if not values:
        raise NotebookError(f"{name}: the parameters cell is empty")
    return values


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """`(name, value)` of `name = value` or `name: type = value`, else a value that is no literal."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value
    return "", None


def check_parameters(given: Mapping[str, Any], defaults: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`given` with each value of the kind that its default has. NotebookError for an unknown name or another kind.

    An integer is taken for a float; text is never taken for a number ("1e-6" as text would reach the notebook as text).
    A default of None takes anything.
    """
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise NotebookError(f"{name} has no parameter {', '.join(map(repr, unknown))}; it knows: {', '.join(defaults)}")
    checked = {}
    for key, value in given.items():
        default = defaults[key]
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise NotebookError(
                f"{name}: parameter {key!r} is {value!r} ({type(value).__name__}); "
                f"its default {default!r} is {type(default).__name__}, give a value of that kind"
            )
        checked[key] = value
    return checked


def header(notebook: nbformat.NotebookNode, name: str) -> Header:
    """Title, question, time and hardware from the first cell.

    Expected: markdown with a first-level heading and the words **Question**, **Time** and **Hardware** in bold, each
    followed by its text. NotebookError naming what is missing.
    """
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown":
        raise NotebookError(f"{name} does not open with a markdown cell")
    title = re.match(r"\s*#\s+(.+)", first.source)
    found = {
        label: re.search(_HEADER_LINE.replace("{label}", label), first.source, flags=re.DOTALL) for label in _LABELS
    }
    missing = [label for label, match in found.items() if match is None]
    if title is None or missing:
        what = " and ".join((["a `# title`"] if title is None else []) + [f"**{label}**" for label in missing])
        raise NotebookError(f"{name}: the first cell lacks {what}")
    texts = {label: " ".join(match["text"].split()) for label, match in found.items()}
    return Header(title[1].strip(), texts["Question"], texts["Time"], texts["Hardware"])
