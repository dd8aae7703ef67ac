"""Memory is not time: it hardly depends on who else uses the machine, so its target is a test."""

import pytest

from benchmarks import learner_memory
from benchmarks.skipped import BenchmarkSkipped


def test_an_update_in_blocks_takes_at_most_a_quarter_of_the_memory_of_full_logits():
    try:
        full, blocks, quotient = learner_memory.measure(["bfloat16"])
    except BenchmarkSkipped as missing:
        pytest.skip(str(missing))
    assert full["value"] > 1000, "the update with full logits holds them, and more than once"
    assert quotient["value"] == blocks["value"] / full["value"] < 0.25
