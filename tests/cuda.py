"""The tests in tests/gpu: what no CPU can show. They skip where there is no CUDA; `make gpu-check` runs them too."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest
import torch

from gmc_core.rollouts.policy import Policy, load_snapshot, response_log_probs

DEVICE = "cuda"
ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
COMPILES = pytest.mark.skipif(
    find_spec("triton") is None or not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="torch.compile needs triton and a C compiler on CUDA",
)


def on_cuda(policy: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    """The same policy, moved there. Its rotary embedding keeps its fp32 buffers."""
    for parameter in policy.model.parameters():
        parameter.data = parameter.data.to(DEVICE, dtype)
    for module in policy.model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(DEVICE))
    return policy


def fixed_log_probs(policy: Policy) -> torch.Tensor:
    """(2, 6) log-probs of fixed tokens under a policy with a vocabulary of 16, on the CPU."""
    tokens = torch.arange(12, device=policy.device).view(2, 6) % 14 + 2
    prompt, mask = tokens[:, :3], torch.ones(2, 3, dtype=torch.bool, device=policy.device)
    with torch.no_grad():
        return response_log_probs(
            policy.model, prompt, mask, tokens, torch.arange(2, device=policy.device), share_prefix=False
        ).cpu()


def receive_weights(connection) -> None:
    """In a process of its own: map the tensors that come through `connection`, load them, say what they give."""
    from tests.models import random_policy

    policy = on_cuda(random_policy(1))
    weights = connection.recv()
    on_device = all(tensor.is_cuda for tensor in weights.values())
    load_snapshot(policy.model, weights)
    logp = fixed_log_probs(policy)
    del weights  # before the sender frees them
    connection.send((on_device, logp.tolist()))
