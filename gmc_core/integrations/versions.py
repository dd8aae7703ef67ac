"""Which versions of a package an integration was written for, and an error that names them."""

from __future__ import annotations

import re
from importlib import metadata

TRL = ("trl", (1, 16), (1, 17), "pip install trl==1.16.0")  # what `check_version` takes


def check_version(package: str, at_least: tuple[int, int], below: tuple[int, int], install: str) -> str:
    """The installed version of `package`. ImportError when it is missing or outside [at_least, below)."""
    bounds = f">={'.'.join(map(str, at_least))},<{'.'.join(map(str, below))}"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"{package} is not installed; this integration needs {package}{bounds}: {install}") from None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not at_least <= (int(numbers[1]), int(numbers[2])) < below:
        raise ImportError(
            f"{package} {version} is installed; this integration reaches into interfaces that were read in "
            f"{package}{bounds} and may be others elsewhere. Install a version of that range: {install}"
        )
    return version
