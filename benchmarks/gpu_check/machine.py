"""Part `device`: the GPU, and what of this project's packages is not installed beside torch and transformers."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu_check.check import Check

# package -> what is left out without it; the check itself needs torch, transformers (with tokenizers, safetensors,
# numpy, tqdm, which it brings) and nothing else
OPTIONAL = {
    "pytest": "the tests marked gpu",
    "jaxtyping": "run-time shape checks in the tests",
    "beartype": "run-time shape checks in the tests",
    "vllm": "nothing here: no part of this check uses it",
    "triton": "the compiled learner (on CUDA)",
}
NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
PACKAGES = (*NEEDED, "triton", "pytest", "vllm")


def missing_packages() -> dict[str, list[str] | dict[str, str]]:
    """What is not importable here: `needed` names, and `optional` ones with what goes without them."""
    return {
        "needed": [name for name in NEEDED if find_spec(name) is None],
        "optional": {name: use for name, use in OPTIONAL.items() if find_spec(name) is None},
    }


def compiler() -> str | None:
    """The C compiler that torch.compile needs to build its launchers; None where there is none."""
    import os

    return next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )


def measure(check: Check) -> None:
    """Name, memory and driver of the device; on a CPU only that it is one."""
    check.report(kind=check.device.type, c_compiler=compiler() is not None)
    if check.device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(check.device)
    free, total = torch.cuda.mem_get_info(check.device)
    check.report(
        name=properties.name,
        multiprocessors=properties.multi_processor_count,
        capability=f"{properties.major}.{properties.minor}",
        memory_gb=total / 1e9,
        memory_in_use_by_others_gb=(total - free) / 1e9,
        cuda=torch.version.cuda,
        **_driver(),
    )


def _driver() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    names = ("driver", "power_limit", "largest_clock")
    return dict(zip(names, values, strict=True)) if done.returncode == 0 and len(values) == len(names) else {}
