"""Whole runs on CUDA: the loop of fixed delay, and the live loop with its worker in this process."""

import pytest
import torch

from gmc_core.rollouts.policy import load_snapshot
from gmc_core.training.loop import train
from gmc_core.training.run_config import RunConfig
from tests.cuda import DEVICE, ON_CUDA
from tests.models import warm_policy

pytestmark = ON_CUDA

RUN = RunConfig(
    device=DEVICE, updates=4, evaluation_every=2, evaluation_prompts=64, prompts_per_update=4, group_size=8,
    optimizer="adamw", learning_rate=3e-4,
)  # fmt: skip
LIVE = RUN.replace(schedule="bounded_staleness", max_staleness=2, verifier_processes=0)


def check(record, staleness):
    assert [row["update"] for row in record.metrics] == [1, 2, 3, 4]
    assert all(row["update_length"] > 0 and row["excluded_rollouts"] == 0 for row in record.metrics)
    assert [row["update"] for row in record.evaluations] == [0, 2, 4]
    assert all(0 < row["accuracy"] < 1 for row in record.evaluations)
    assert max(row["staleness"] for row in record.metrics) == staleness


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_of_fixed_delay(tmp_path, dtype):
    record = train(RUN.replace(delay=1, dtype=dtype), root=tmp_path)
    check(record, 1)
    from safetensors.torch import load_file

    policy = warm_policy()  # on a CPU: what was trained here can be read there
    policy.model.to(getattr(torch, dtype))
    load_snapshot(policy.model, load_file(record.path / "policy.safetensors"))


@pytest.mark.parametrize("change", [{}, {"in_flight_updates": True}, {"dtype": "bfloat16"}], ids=str)
def test_a_live_run_with_its_worker_inline(tmp_path, change):
    """Every weight update is probed: a worker whose log-probs are not the learner's ends the run."""
    record = train(LIVE.replace(**change), root=tmp_path)
    assert [row["update"] for row in record.metrics] == [1, 2, 3, 4]
    assert max(row["staleness_max"] if "staleness_max" in row else row["staleness"] for row in record.metrics) <= 2
    assert all(0 < row["accuracy"] < 1 for row in record.evaluations)
