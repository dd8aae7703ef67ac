"""Ray as the ground that actors stand on: started here on this machine, or joined where a cluster runs already."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any

import psutil
import ray

import gmc_core

VARIABLES = {  # what the user has set stays
    # Nothing about this machine is sent anywhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray starts a process per CPU ahead of time; ours have an environment of their own and would use none of them.
    "RAY_prestart_worker_first_driver": "0",
    # An actor without a claim to a GPU sees what its machine has: Ray's coming default, which it announces otherwise.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LOGICAL_CPUS = 1024  # on one machine workers share the CPUs as processes do; none waits for another to end
ATTEMPTS = 3


def start_ray(address: str | None = None) -> bool:
    """Make Ray ready for this process. True if it was not before: whoever started it calls `stop_ray` at the end.

    `address=None` starts Ray on this machine alone, without dashboard and usage statistics. It ends with this process,
    however that ends. Any other address ("auto", "host:6379") joins a running cluster: its nodes get this package's
    sources from here, and need the same Python and versions of Ray and torch, the packages of the engine, and a model
    given as a folder at the same place.

    Raises ConnectionError when no cluster answers at `address`, RuntimeError when Ray does not start here.
    """
    if ray.is_initialized():
        return False
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        _start_here(quiet)
        return True
    sources = str(Path(gmc_core.__file__).parent)
    try:
        _check_port(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        ray.init(address=address, runtime_env={"py_modules": [sources]}, **quiet)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConnectionError(
            f"no Ray cluster could be joined at {address!r}: {str(error).rstrip('.')}. Start one (`ray start --head`, "
            "and `ray start --address=...` on the other nodes), or leave the address out to run on this machine alone"
        ) from error
    return True


def _check_port(address: str) -> None:
    """OSError when nothing listens at "host:port". Ray itself would try for minutes and then end the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def stop_ray() -> None:
    """Leave the cluster. A Ray that was started here ends with everything in it."""
    with contextlib.suppress(Exception):  # it may have died before, and nothing is left to save
        ray.shutdown()


def _start_here(quiet: dict[str, Any]) -> None:
    before = _processes()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address="local", num_cpus=LOGICAL_CPUS, include_dashboard=False, **quiet)
            return
        except Exception as error:
            stop_ray()
            for process in _processes() - before:  # Ray leaves them until this process ends
                with contextlib.suppress(psutil.Error):
                    process.kill()
            # Ray gives its helpers 15 s to come up and itself 30 s, both fixed; on a busy machine that may not do.
            if attempt == ATTEMPTS or "timed out" not in str(error):
                raise RuntimeError(
                    f"Ray did not start on this machine: {str(error).rstrip('.')}. Is it very busy, or out of memory, "
                    "shared memory or processes? workers='process' does without Ray"
                ) from error


def _processes() -> set[psutil.Process]:
    """Ray's own processes below this one."""
    return {process for process in psutil.Process().children(recursive=True) if is_of_ray(process)}


def is_of_ray(process: psutil.Process) -> bool:
    """Whether Ray runs it: a daemon of its, or an actor."""
    try:
        name, words = process.name(), process.cmdline()
    except psutil.Error:  # it has ended
        return False
    return name.startswith("ray::") or any(str(Path(ray.__file__).parent) in word for word in words)
