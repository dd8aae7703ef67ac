"""When an executed notebook may be kept: a key over everything its outputs depend on, stored beside the executed copy.

The key is a SHA-256 over the notebook's sources (not its outputs), every module of `gmc_core`, the parameters, the data
under `data/`, the lock of the environment and the Python version. A kept copy counts only while the copy itself and
every figure it drew still exist.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from gmc_core import paths
from gmc_core.files import write_atomically

LOCK = paths.ROOT / "requirements-lock.txt"


@dataclass(frozen=True)
class Record:
    """What is known of one executed notebook. `parts` holds a hash per ingredient, so a rerun can say what changed."""

    parts: dict[str, str]
    seconds: float
    figures: list[str] = field(default_factory=list)  # relative to the checkout, or absolute outside it

    @property
    def key(self) -> str:
        return combine(self.parts)


def combine(parts: Mapping[str, str]) -> str:
    """One SHA-256 for all ingredients."""
    return hashlib.sha256(json.dumps(dict(sorted(parts.items()))).encode()).hexdigest()


def hash_sources(notebook: nbformat.NotebookNode) -> str:
    """Hash of kind, source and tags of every cell; outputs, counts and ids do not enter."""
    cells = [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def hash_files(files: Iterable[Path], root: Path) -> str:
    """Hash of relative names and contents of `files`."""
    digest = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def shared_parts(root: Path = paths.ROOT) -> dict[str, str]:
    """The ingredients that all notebooks of a checkout have in common: package, data, lock, Python version.

    Markdown under `data/` (cards, protocols) is for readers and does not enter.
    """
    modules = (root / "gmc_core").rglob("*.py")
    data = (file for file in (root / "data").rglob("*") if file.is_file() and file.suffix != ".md")
    lock = root / LOCK.relative_to(paths.ROOT)
    return {
        "gmc_core": hash_files(modules, root),
        "data": hash_files(data, root),
        "lock": hash_files([lock] if lock.exists() else [], root),
        "python": platform.python_version(),
    }


def notebook_parts(
    notebook: nbformat.NotebookNode, parameters: Mapping[str, Any], shared: Mapping[str, str]
) -> dict[str, str]:
    """All ingredients of one notebook: `shared` plus its sources and its parameters."""
    return {
        **shared,
        "notebook": hash_sources(notebook),
        "parameters": hashlib.sha256(json.dumps(dict(sorted(parameters.items())), default=repr).encode()).hexdigest(),
    }


def write_record(path: Path, record: Record) -> None:
    """Write `record` as JSON in one step."""
    write_atomically(path, (json.dumps(asdict(record), indent=2) + "\n").encode())


def read_record(path: Path) -> Record | None:
    """The record at `path`; None if there is none or it cannot be read (the notebook is then run again)."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def why_run(record: Record | None, parts: Mapping[str, str], executed: Path, root: Path = paths.ROOT) -> str:
    """Why the notebook has to be run, in words; empty when the kept copy stands."""
    if record is None or not executed.exists():
        return "no earlier run"
    changed = sorted(name for name in parts.keys() | record.parts.keys() if parts.get(name) != record.parts.get(name))
    if changed:
        return f"changed: {', '.join(changed)}"
    missing = [figure for figure in record.figures if not (root / figure).exists()]
    return f"figure missing: {', '.join(missing)}" if missing else ""
