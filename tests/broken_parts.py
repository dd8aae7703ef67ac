"""Parts of the GPU check that go wrong, for tests/test_benchmarks_gpu_check.py: each reports something first."""

import os
import time


def good(check):
    check.report(value=1.0, seen=sorted(check.found))


def raises(check):
    check.report(value=2.0)
    raise RuntimeError("no kernel image")


def raises_in_a_row(check):
    def row():
        raise RuntimeError("out of memory")

    check.row("first", row)
    check.row("second", lambda: {"value": 3.0})
    check.row("third", lambda: {"value": 4.0}, least=1e6)


def dies(check):
    check.report(value=5.0)
    os._exit(7)


def hangs(check):
    """With a child of its own, whose id it reports."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    check.report(value=6.0, child=child)
    time.sleep(600)
