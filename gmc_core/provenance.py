"""Where a result comes from: git commit, uncommitted changes, lock file, package versions, machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata

from gmc_core import paths

# What a figure is computed from. Pictures themselves are left out: writing one must not make the next one "dirty".
_SOURCES = ("gmc_core", "data", "notebooks")
_PACKAGES = ("torch", "numpy", "scipy", "matplotlib", "seaborn")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_state(*, without: Sequence[str] = ()) -> dict[str, str | bool | None]:
    """`{"commit": ..., "dirty": ...}`; dirty means uncommitted changes in gmc_core/, data/ or notebooks/, those in the
    folders `without` (relative to the checkout) left out.

    Both are None outside a git checkout.
    """
    commit = _git("rev-parse", "HEAD")
    left_out = [f":(exclude){folder}" for folder in without]
    changes = _git("status", "--porcelain", "--", *_SOURCES, *left_out) if commit else None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def package_versions(names: tuple[str, ...] = _PACKAGES) -> dict[str, str]:
    """Installed versions of `names` (absent packages are left out) and of Python."""
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def lock_hash() -> str | None:
    """SHA-256 of requirements-lock.txt, 16 hex digits; None where there is no lock (an installed package)."""
    lock = paths.ROOT / "requirements-lock.txt"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock.exists() else None


def machine() -> dict[str, str | int | None]:
    """Architecture, processor model and number of cores: what timings depend on, and nothing that names a host."""
    model = platform.processor() or None
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": model,
        "cores": os.cpu_count(),
    }
