"""Part `tests`: the tests marked `gpu` (tests/gpu), in a process of their own.

Without CUDA all of them skip. What a test measures (`record_property`) is kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.check import Check, NotApplicable
from gmc_core import paths

FOLDER = paths.ROOT / "tests" / "gpu"


def measure(check: Check) -> None:
    check.row("pytest", lambda: _run(check))


def _run(check: Check) -> dict[str, Any]:
    if find_spec("pytest") is None:
        raise NotApplicable("pytest is not installed")
    if not FOLDER.is_dir():
        raise NotApplicable("the tests are part of a checkout, not of an installed gmc_core")
    # what is compiled takes longest, so it comes last
    files = sorted(map(str, FOLDER.glob("test_*.py")), key=lambda path: ("compiled" in path, path))
    hook = [] if find_spec("jaxtyping") and find_spec("beartype") else ["--noconftest"]
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report.xml", Path(folder) / "output"
        command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-m", "gpu", *hook, "-p", "no:cacheprovider"]
        with open(output, "w") as lines:
            process = subprocess.Popen(
                [*command, f"--junitxml={report}", *files], cwd=paths.ROOT, stdout=lines, stderr=subprocess.STDOUT
            )
            try:
                process.wait(max(5.0, check.left - 5.0))
            except subprocess.TimeoutExpired as late:
                process.kill()
                process.wait()
                check.report(outcomes=read_lines(output.read_text()))
                raise NotApplicable(f"the tests were ended after {late.timeout:.0f} s, see outcomes") from None
        if not report.exists():
            raise RuntimeError(f"pytest wrote no report (exit code {process.returncode}):\n{_end_of(output)}")
        found = read_report(report)
        check.report(**found)
        if process.returncode or not found["tests"]:
            raise RuntimeError(f"pytest ended with code {process.returncode}:\n{_end_of(output)}")
    return {"exit_code": process.returncode}


def _end_of(output: Path) -> str:
    return output.read_text()[-4000:]


def read_lines(text: str) -> dict[str, str]:
    """Outcome by test, from the lines of `pytest -v`."""
    found = re.findall(r"^(?:\S*/)?(\w+)\.py::(.+?) (PASSED|FAILED|SKIPPED|ERROR)\b", text, flags=re.MULTILINE)
    return {f"{file}::{name}": outcome.lower() for file, name, outcome in found}


def read_report(path: Path) -> dict[str, Any]:
    """Counts, the outcome of every test, and what they recorded."""
    outcomes, measured = {}, {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        marks = {child.tag for child in case}
        outcomes[name] = next((tag for tag in ("failure", "error", "skipped") if tag in marks), "passed")
        for item in case.iter("property"):
            measured[f"{name}::{item.get('name')}"] = item.get("value")
    counts = {f"tests_{kind}": sum(value == kind for value in outcomes.values()) for kind in ("passed", "skipped")}
    return {"tests": len(outcomes), **counts, "outcomes": outcomes, "measured": measured}
