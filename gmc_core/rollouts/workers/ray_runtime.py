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
ENDING_SECONDS = 5.0  # what Ray's processes get to end by themselves, once Ray was shut down

# Ray's processes below this one when Ray was started here, which are not ours to end; None: it was not started here.
_others: set[psutil.Process] | None = None


def start_ray(address: str | None = None) -> bool:
    """Make Ray ready for this process. True if it was not before: whoever started it calls `stop_ray` at the end.

    `address=None` starts Ray on this machine alone, without dashboard and usage statistics. It ends with this process,
    however that ends. Any other address ("auto", "host:6379") joins a running cluster: its nodes get this package's
    sources from here, and need the same Python and versions of Ray and torch, the packages of the engine, and a model
    given as a folder at the same place.

    Raises ConnectionError when no cluster answers at `address`, RuntimeError when Ray does not start here.
    """
    global _others
    if ray.is_initialized():
        return False
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        _start_here(quiet)
        return True
    _others = None  # a cluster's processes are not ours, whatever was started here before
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
    """Leave the cluster. A Ray that was started here ends with everything in it, within seconds.

    Ray itself ends its daemons. An actor's process that is just coming up outlives them by minutes, looking for the
    one that started it, and a failed start leaves all that was there: what still runs after `ENDING_SECONDS` is killed.
    """
    global _others
    ours = _ours()
    with contextlib.suppress(Exception):  # it may have died before, and nothing is left to save
        ray.shutdown()
    ours |= _ours()  # what came up meanwhile
    _, left = psutil.wait_procs(ours, timeout=ENDING_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=ENDING_SECONDS)
    _others = None


def _start_here(quiet: dict[str, Any]) -> None:
    global _others
    before = _processes()
    for attempt in range(1, ATTEMPTS + 1):
        _others = before
        try:
            ray.init(address="local", num_cpus=LOGICAL_CPUS, include_dashboard=False, **quiet)
            return
        except Exception as error:
            stop_ray()
            # Ray gives its helpers 15 s to come up and itself 30 s, both fixed; on a busy machine that may not do.
            if attempt == ATTEMPTS or "timed out" not in str(error):
                raise RuntimeError(
                    f"Ray did not start on this machine: {str(error).rstrip('.')}. Is it very busy, or out of memory, "
                    "shared memory or processes? workers='process' does without Ray"
                ) from error


def _ours() -> set[psutil.Process]:
    """What belongs to the Ray that was started here: its processes and all below them."""
    if _others is None:
        return set()
    found = _processes() - _others
    return found.union(*(_children(process) for process in found))


def _processes() -> set[psutil.Process]:
    """Ray's own processes below this one."""
    return {process for process in _children(psutil.Process()) if is_of_ray(process)}


def _children(process: psutil.Process) -> list[psutil.Process]:
    """All below it, at every depth; none when it has ended."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def is_of_ray(process: psutil.Process) -> bool:
    """Whether Ray runs it: a daemon of its, or an actor.

    A word that begins with Ray's folder is a program or script of Ray. To contain it says nothing: Python's fork server
    has `sys.path` on its command line, and importing Ray puts a folder of its into that.
    """
    try:
        name, words = process.name(), process.cmdline()
    except psutil.Error:  # it has ended
        return False
    return name.startswith("ray::") or any(word.startswith(str(Path(ray.__file__).parent)) for word in words)
