"""Part `tests`: the tests marked `gpu` (tests/gpu), in a process of their own.

Without CUDA all of them skip. What a test measures (`record_property`) is kept.
"""

from __future__ import annotations

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
        raise NotApplicable(f"{FOLDER.name} is not part of an installed gmc_core; run from a checkout")
    hook = [] if find_spec("jaxtyping") and find_spec("beartype") else ["--noconftest"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *hook, "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", str(FOLDER)]
        try:
            done = subprocess.run(
                command, cwd=paths.ROOT, capture_output=True, text=True, timeout=max(5.0, check.left - 5.0)
            )
        except subprocess.TimeoutExpired as late:
            raise NotApplicable(f"the tests were not done in {late.timeout:.0f} s") from None
        if not report.exists():
            raise RuntimeError(
                f"pytest wrote no report (exit code {done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}"
            )
        found = read_report(report)
    check.report(**found)
    if done.returncode or not found["tests"]:
        raise RuntimeError(f"pytest ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return {"exit_code": done.returncode}


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
