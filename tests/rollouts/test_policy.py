import pytest
import torch

from gmc_core.rollouts.policy import load_policy, load_snapshot, response_log_probs, snapshot, weights_fingerprint
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tiny_qwen3 import tiny_qwen3
from tests.models import random_policy


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 5])
def test_sharing_the_prefix_changes_neither_log_probs_nor_gradients(padded, length):
    model = random_policy().model
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, 16, (3, 4), generator=generator)
    mask = torch.ones(3, 4, dtype=torch.bool)
    if padded:
        mask[1, :2] = False
    response = torch.randint(1, 16, (7, length), generator=generator)
    index = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    direction = torch.randn(7, length, generator=generator)
    results = []
    for share_prefix in (True, False):
        model.zero_grad()
        logp = response_log_probs(model, prompt, mask, response, index, temperature=0.7, share_prefix=share_prefix)
        (logp * direction).sum().backward()
        results.append((logp.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=0)
    for shared, plain in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(shared, plain, atol=1e-4, rtol=1e-4)


def test_rows_of_their_own_need_no_attention_mask(monkeypatch):
    """Flash attention takes none; padding behind a row is nothing that a causal model sees."""
    policy, seen = random_policy(), []
    forward = type(policy.model.model).forward
    monkeypatch.setattr(type(policy.model.model), "forward", lambda body, **k: seen.append(k) or forward(body, **k))
    mask = torch.tensor([[False, True, True], [True, True, True]])
    prompt, response, index = torch.full((2, 3), 4), torch.full((2, 5), 5), torch.tensor([0, 1])
    response_log_probs(policy.model, prompt, mask, response, index, share_prefix=False)
    (call,) = seen
    assert call.get("attention_mask") is None and call.get("position_ids") is None


def test_log_probs_are_fp32_for_a_bf16_model():
    model = random_policy().model.to(torch.bfloat16)
    logp = response_log_probs(
        model,
        torch.full((1, 3), 4),
        torch.ones(1, 3, dtype=torch.bool),
        torch.full((2, 2), 5),
        torch.zeros(2, dtype=torch.long),
    )
    assert logp.dtype == torch.float32


def test_snapshot_is_a_copy_and_loads_back():
    model = random_policy(0).model
    saved = snapshot(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    before = weights_fingerprint(model)
    load_snapshot(model, saved)
    assert weights_fingerprint(model) == random_policy(0).fingerprint != before


def test_weights_of_another_model_are_refused():
    with pytest.raises(ValueError, match="another model"):
        load_snapshot(random_policy().model, snapshot(tiny_qwen3(0, hidden_size=64, layers=1, heads=2, kv_heads=1)))
    with pytest.raises(ValueError, match="has shape"):
        load_snapshot(random_policy().model, snapshot(tiny_qwen3(0, hidden_size=96, layers=2, heads=2, kv_heads=1)))


def test_missing_model_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="warm_start"):
        load_policy(tmp_path)


def test_streams_differ_by_seed_name_and_index():
    draws = {
        torch.randint(0, 2**40, (1,), generator=stream_generator(*arguments)).item()
        for arguments in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    }
    assert len(draws) == 4
