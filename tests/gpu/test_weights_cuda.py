"""Weights from process to process on one GPU, by CUDA IPC: what vLLM's transfer rests on."""

import torch
import torch.multiprocessing

from gmc_core.rollouts.policy import snapshot
from tests.cuda import ON_CUDA, fixed_log_probs, on_cuda, receive_weights
from tests.models import random_policy

pytestmark = ON_CUDA


def test_another_process_maps_the_weights_and_gives_the_same_log_probs():
    policy = on_cuda(random_policy(0))
    weights = snapshot(policy.model)
    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=receive_weights, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        here.send(weights)
        assert here.poll(120), "the other process did not answer"
        on_device, logp = here.recv()
    finally:
        process.join(10)
        process.kill()
    assert on_device
    torch.testing.assert_close(torch.tensor(logp), fixed_log_probs(policy), atol=1e-6, rtol=0)
