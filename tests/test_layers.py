"""The house: a module imports only from its own floor or below, and the estimators need torch and nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from gmc_core import paths

PACKAGE = paths.ROOT / "gmc_core"
FLOORS = {  # name right under gmc_core -> floor; only modules of the ground floor may use others of their floor
    "typing": 0,
    "paths": 0,
    "files": 0,
    "provenance": 0,
    "estimators": 1,
    "theory": 2,
    "rollouts": 3,
    "training": 4,
    "reporting": 5,
    "experiments": 6,
    "integrations": 6,
}
# floors on which a module may import only these, besides the standard library and gmc_core itself
ONLY = {0: {"torch", "jaxtyping"}, 1: {"torch"}}


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 20, f"only {len(found)} modules under {PACKAGE}: is this the checkout?"
    return found


def imports(path: Path) -> set[str]:
    """Every module imported anywhere in the file, also inside functions; `from gmc_core import x` is gmc_core.x."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name so that floors can be read"
            names.add(node.module)
            if node.module == "gmc_core":
                names |= {f"gmc_core.{alias.name}" for alias in node.names}
    return names


def part(module: str) -> str | None:
    """`gmc_core.training.loop` -> "training"; None for gmc_core itself, its public names and foreign modules."""
    name = module.split(".")
    below = name[1] if name[0] == "gmc_core" and len(name) > 1 else None
    return below if below and ((PACKAGE / below).is_dir() or (PACKAGE / f"{below}.py").exists()) else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in FLOORS, f"{own} has no floor; add it to FLOORS in {Path(__file__).name}"
    for name in imports(path):
        if part(name) is not None and part(name) != own:
            below = FLOORS[part(name)] < FLOORS[own] or FLOORS[part(name)] == FLOORS[own] == 0
            assert below, f"{path.name} on floor {FLOORS[own]} imports {name}, which is not below it"
    if (allowed := ONLY.get(FLOORS[own])) is not None:
        foreign = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"gmc_core"}
        assert foreign <= allowed, (
            f"{path.name} may import {sorted(allowed)} only; it imports {sorted(foreign - allowed)}"
        )


def test_the_estimators_do_no_input_or_output():
    effects = {"logging", "pathlib", "os", "random", "tempfile", "shutil", "subprocess", "argparse", "json", "socket"}
    for path in (PACKAGE / "estimators").glob("*.py"):
        found = {name.split(".")[0] for name in imports(path)} & effects
        assert not found, f"estimators/{path.name} imports {sorted(found)}"


def test_gmc_core_imports_with_torch_alone():
    """Every other installed distribution is hidden; what torch itself imports is left to it."""
    code = """
import sys, importlib.abc
import torch
allowed = {name.split(".")[0] for name in sys.modules} - {"jaxtyping", "beartype"}
class OnlyTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top != "gmc_core" and top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is hidden by the test")
        if top == "numpy":
            raise ModuleNotFoundError("numpy is hidden by the test")
for name in [name for name in sys.modules if name.split(".")[0] == "numpy"]:
    del sys.modules[name]
sys.meta_path.insert(0, OnlyTorch())
try:
    import numpy
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the test does not hide numpy")
import gmc_core
weights = gmc_core.gmc_weights(torch.log(torch.tensor([[2.0, 4.0]])))
assert torch.allclose(weights, torch.tensor([[0.8, 1.6]])), weights
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
