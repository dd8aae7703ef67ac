import math

import pytest
import torch

from gmc_core import loss_normalizer, policy_gradient_loss
from gmc_core.estimators.losses import NORMALIZERS

P, G, T = 3, 4, 6


def _step(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logp = -3 * torch.rand((P, G, T), generator=generator)
    weight = 2 * torch.rand((P, G, T), generator=generator)
    advantage = torch.randn((P, G), generator=generator)
    length = torch.randint(1, T + 1, (P, G), generator=generator)
    mask = torch.arange(T) < length.unsqueeze(-1)
    valid = torch.rand((P, G), generator=generator) < 0.7
    valid[0, 0], valid[1] = True, False  # prompt 1 has no valid rollout
    return logp, weight, advantage, mask, valid


def test_scales_by_hand():
    mask = torch.tensor([[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 1]], [[0, 0, 0], [1, 0, 0]]])
    valid = torch.tensor([[True, True], [True, False], [True, False]])  # prompt 2: an empty and an invalid rollout
    total = loss_normalizer("sequence_mean_token_sum", mask, valid=valid)
    torch.testing.assert_close(total, torch.tensor([[0.25, 0.25], [0.5, 0.0], [0.0, 0.0]]))
    mean = loss_normalizer("sequence_mean_token_mean", mask, valid=valid)
    torch.testing.assert_close(mean, torch.tensor([[0.125, 0.25], [0.5 / 3, 0.0], [0.0, 0.0]]))
    token = loss_normalizer("token_mean", mask, valid=valid)
    torch.testing.assert_close(token, torch.tensor([[1 / 6, 1 / 6], [1 / 6, 0.0], [0.0, 0.0]]))
    constant = loss_normalizer("sequence_mean_token_sum", mask, valid=valid, max_length=10)
    torch.testing.assert_close(constant, total / 10)


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_interleaved_labels_equal_groups(kind):
    *_, mask, valid = _step()
    order = torch.randperm(P * G, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([5, -2, 900]).repeat_interleave(G)[order]
    flat = loss_normalizer(kind, mask.flatten(0, 1)[order], valid=valid.flatten()[order], group_index=labels)
    torch.testing.assert_close(flat, loss_normalizer(kind, mask, valid=valid).flatten()[order])


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_loss_is_the_plain_sum(kind):
    logp, weight, advantage, mask, valid = _step()
    scale = loss_normalizer(kind, mask, valid=valid)
    loss, metrics = policy_gradient_loss(logp, weight, advantage, mask, normalizer=scale)
    expected = 0.0
    for p in range(P):
        for g in range(G):
            for t in range(T):
                if mask[p, g, t]:
                    expected -= float(scale[p, g] * advantage[p, g] * weight[p, g, t] * logp[p, g, t])
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["loss"]) == float(loss) and not metrics["loss"].requires_grad
    assert int(metrics["tokens"]) == int(mask[valid].sum())


@pytest.mark.parametrize("kind", NORMALIZERS)
@pytest.mark.parametrize("rows_per_part", [1, 2, 5, 12])
def test_splitting_a_step_changes_nothing(kind, rows_per_part):
    logp, weight, advantage, mask, valid = _step()
    scale = loss_normalizer(kind, mask, valid=valid)
    whole = logp.clone().requires_grad_()
    loss, _ = policy_gradient_loss(whole, weight, advantage, mask, normalizer=scale)
    loss.backward()

    flat = logp.flatten(0, 1).clone().requires_grad_()
    order = torch.randperm(P * G, generator=torch.Generator().manual_seed(2))
    total, tokens = 0.0, 0
    for rows in order.split(rows_per_part):
        part, metrics = policy_gradient_loss(
            flat[rows],
            weight.flatten(0, 1)[rows],
            advantage.flatten()[rows],
            mask.flatten(0, 1)[rows],
            normalizer=scale.flatten()[rows],
        )
        part.backward()
        total, tokens = total + float(metrics["loss"]), tokens + int(metrics["tokens"])
    assert torch.equal(flat.grad.view(P, G, T), whole.grad)
    assert total == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
    assert tokens == int(mask[valid].sum())


def test_a_name_means_these_rows_are_the_whole_step():
    logp, weight, advantage, mask, _ = _step()
    for kind in NORMALIZERS:
        by_name, _ = policy_gradient_loss(logp, weight, advantage, mask, normalizer=kind)
        by_scale, _ = policy_gradient_loss(logp, weight, advantage, mask, normalizer=loss_normalizer(kind, mask))
        assert torch.equal(by_name, by_scale)


def test_one_weight_per_rollout_is_spread_over_its_tokens():
    logp, weight, advantage, mask, _ = _step()
    per_rollout = weight[..., 0]
    spread = per_rollout.unsqueeze(-1).expand(P, G, T)
    one, _ = policy_gradient_loss(logp, per_rollout, advantage, mask, normalizer="token_mean")
    other, _ = policy_gradient_loss(logp, spread, advantage, mask, normalizer="token_mean")
    assert torch.equal(one, other)


def test_nothing_flows_into_weights_or_advantages():
    logp, weight, advantage, mask, _ = _step()
    for tensor in (logp, weight, advantage):
        tensor.requires_grad_()
    policy_gradient_loss(logp, weight, advantage, mask, normalizer="token_mean")[0].backward()
    assert logp.grad is not None and weight.grad is None and advantage.grad is None


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, -9999.0])
def test_what_does_not_count_is_inert(garbage):
    logp, weight, advantage, mask, valid = _step()
    advantage[0, 1] = 0.0  # an equal-reward rollout
    weight[2, 2] = 0.0  # a poisoned rollout
    scale = loss_normalizer("sequence_mean_token_sum", mask, valid=valid)
    inert = ~mask | ~valid.unsqueeze(-1)
    inert[0, 1], inert[2, 2] = True, True

    def gradient(values):
        values = values.clone().requires_grad_()
        loss, _ = policy_gradient_loss(values, weight, advantage, mask, normalizer=scale)
        loss.backward()
        return loss.detach(), values.grad

    clean_loss, clean_gradient = gradient(logp)
    dirty_loss, dirty_gradient = gradient(torch.where(inert, garbage, logp))
    assert torch.equal(dirty_loss, clean_loss) and torch.equal(dirty_gradient, clean_gradient)
    assert torch.equal(dirty_gradient[inert], torch.zeros(int(inert.sum())))
    assert clean_gradient.abs().sum() > 0


def test_a_step_without_a_valid_rollout_has_loss_zero():
    logp, weight, advantage, mask, valid = _step()
    for kind in NORMALIZERS:
        scale = loss_normalizer(kind, mask, valid=torch.zeros_like(valid))
        loss, metrics = policy_gradient_loss(logp, weight, advantage, mask, normalizer=scale)
        assert float(loss) == 0.0 and int(metrics["tokens"]) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_log_probabilities_are_summed_in_float32(dtype):
    logp, weight, advantage, mask, _ = _step()
    loss, _ = policy_gradient_loss(logp.to(dtype), weight, advantage, mask, normalizer="token_mean")
    assert loss.dtype == torch.float32


def test_errors_teach():
    logp, weight, advantage, mask, _ = _step()
    with pytest.raises(ValueError, match=r"Did you mean 'token_mean'\?"):
        policy_gradient_loss(logp, weight, advantage, mask, normalizer="token_means")
    with pytest.raises(ValueError, match="sliced with the rows"):
        policy_gradient_loss(logp, weight, advantage, mask, normalizer=torch.ones(P))
    with pytest.raises(ValueError, match="one weight per token"):
        policy_gradient_loss(logp, weight[..., :2], advantage, mask, normalizer="token_mean")
    with pytest.raises(ValueError, match="mask has shape"):
        policy_gradient_loss(logp, weight, advantage, mask[:, :2], normalizer="token_mean")
    with pytest.raises(ValueError, match="one advantage per rollout"):
        policy_gradient_loss(logp, weight, advantage[0], mask, normalizer="token_mean")
    with pytest.raises(ValueError, match="max_length only applies"):
        loss_normalizer("token_mean", mask, max_length=6)
    with pytest.raises(ValueError, match="max_length must be > 0"):
        loss_normalizer("sequence_mean_token_sum", mask, max_length=0)
