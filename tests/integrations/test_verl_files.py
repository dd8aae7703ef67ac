"""The lock and the documentation of the verl integration. Needs no verl."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gmc_core import paths


def pins(name):
    lines = (paths.ROOT / name).read_text(encoding="utf-8").splitlines()
    read = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): str(each.specifier) for each in read}


def test_it_pins_verl_as_the_extra_does_and_repeats_nothing_but_the_antlr_of_hydra():
    lock, below = pins("requirements-verl-lock.txt"), pins("requirements-lock.txt") | pins("requirements-live-lock.txt")
    assert len(lock) >= 10 and all(version.startswith("==") for version in lock.values())
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = project["optional-dependencies"]["verl"]
    assert lock["verl"] == str(Requirement(extra).specifier)
    assert set(lock) & set(below) == {"antlr4-python3-runtime"}
    assert lock["antlr4-python3-runtime"].startswith("==4.9."), "the one that hydra and omegaconf read"


def test_the_lines_that_the_documentation_explains_are_those_of_the_script():
    text = (paths.ROOT / "docs/verl.md").read_text(encoding="utf-8")
    script = (paths.ROOT / "docs/examples/verl_separate_async.sh").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```bash\n(.*?)```", text, re.S) if "trainer_mode" in block)
    settings = [line.split("#")[0].strip() for line in block.splitlines()]
    assert len(settings) == 7
    given = [line.strip() for line in script.splitlines()]
    assert all(setting in given for setting in settings)
    assert set(re.findall(r"\]\((examples/\w+\.sh)\)", text)) == {
        f"examples/{path.name}" for path in (paths.ROOT / "docs/examples").glob("verl_*.sh")
    }
