"""Variants that take a weight apart, against plain autograd and against the means they promise."""

import pytest
import torch

from gmc_core.estimators import gmc_weights, group_mass, loss_normalizer, make_estimator, policy_gradient_loss
from gmc_core.estimators.variants import match_group_mean, undetached_cap_advantages


def step(seed=0, P=5, G=4, T=6, spread=0.6):
    """Log-probs with gradient, behaviour log-probs, a ragged mask and advantages."""
    generator = torch.Generator().manual_seed(seed)
    current = -torch.rand(P, G, T, generator=generator, dtype=torch.float64)
    behavior = current + spread * torch.randn(P, G, T, generator=generator, dtype=torch.float64)
    length = torch.randint(1, T + 1, (P, G, 1), generator=generator)
    advantage = torch.randn(P, G, generator=generator, dtype=torch.float64)
    return current.requires_grad_(), behavior, torch.arange(T).expand(P, G, T) < length, advantage


def rollout_means(weight, mask):
    return (weight * mask).sum(-1) / mask.sum(-1)


@pytest.mark.parametrize("name", ["tic_mask", "tic_truncate", "snis", "ppo_clip", "cispo"])
def test_the_rescaled_mean_is_that_of_the_reference_and_the_shape_stays(name):
    current, behavior, mask, advantage = step()
    weight = make_estimator(name)(current, behavior, mask, advantage)
    reference = make_estimator("gmc")(current, behavior, mask, advantage)
    matched = match_group_mean(weight, reference, mask)
    lifted = rollout_means(weight, mask).mean(-1) > 0
    assert lifted.any()
    torch.testing.assert_close(
        rollout_means(matched, mask).mean(-1)[lifted], rollout_means(reference, mask).mean(-1)[lifted]
    )
    for p in range(len(weight)):  # one factor for the whole group
        used = weight[p] > 0
        factor = (matched[p] / weight[p])[used]
        assert torch.allclose(factor, factor[:1]) if used.any() else (matched[p] == 0).all()


def test_snis_at_the_mass_of_gmc_is_gmc():
    current, behavior, mask, advantage = step(spread=1.0)
    reference = make_estimator("gmc")(current, behavior, mask, advantage)
    matched = match_group_mean(make_estimator("snis")(current, behavior, mask, advantage), reference, mask)
    torch.testing.assert_close(matched, reference)


def test_a_group_of_zero_weights_stays_zero():
    mask = torch.ones(2, 3, 1, dtype=torch.bool)
    weight = torch.tensor([[[0.0], [0.0], [0.0]], [[1.0], [0.0], [2.0]]])
    matched = match_group_mean(weight, torch.ones(2, 3, 1), mask)
    torch.testing.assert_close(matched.squeeze(-1), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 2.0]]))


def test_rescaling_flat_rollouts_equals_rescaling_groups():
    current, behavior, mask, advantage = step(seed=3)
    weight = make_estimator("tic_mask")(current, behavior, mask, advantage)
    reference = make_estimator("gmc")(current, behavior, mask, advantage)
    grouped = match_group_mean(weight, reference, mask).flatten(0, 1)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    label = torch.arange(5).repeat_interleave(4)
    flat = match_group_mean(
        weight.flatten(0, 1)[order], reference.flatten(0, 1)[order], mask.flatten(0, 1)[order], group_index=label[order]
    )
    torch.testing.assert_close(flat, grouped[order])


@pytest.mark.parametrize("normalizer", ["sequence_mean_token_sum", "sequence_mean_token_mean", "token_mean"])
def test_undetached_advantages_give_the_gradient_of_the_literal_objective(normalizer):
    current, behavior, mask, advantage = step()
    scale = loss_normalizer(normalizer, mask, dtype=torch.float64)
    log_ratio = ((current - behavior) * mask).sum(-1)
    ratio = log_ratio.exp()
    mass = ratio.mean(-1, keepdim=True)
    assert (mass > 1.2).any() and (mass < 1.2).any()
    literal = -(scale * advantage * ratio * (1.2 / mass).clamp(max=1.0)).sum()
    (expected,) = torch.autograd.grad(literal, current, retain_graph=True)
    detached = log_ratio.detach()
    credit = undetached_cap_advantages(advantage, detached, scale)
    loss, _ = policy_gradient_loss(current, gmc_weights(detached), credit, mask, normalizer=scale)
    (taken,) = torch.autograd.grad(loss, current)
    torch.testing.assert_close(taken, expected)
    below = (mass <= 1.2).squeeze(-1)
    assert torch.equal(credit[below], advantage[below]) and not torch.allclose(credit[~below], advantage[~below])


def test_undetached_advantages_of_equal_rewards_vanish_where_the_cap_acts():
    log_ratio = torch.tensor([[1.0, 0.5, -1.0], [-1.0, -0.5, -0.2]])
    credit = undetached_cap_advantages(torch.ones(2, 3), log_ratio, torch.full((2, 3), 1 / 6))
    torch.testing.assert_close(credit, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_rollouts_left_out_have_no_say_in_the_undetached_mean():
    log_ratio = torch.tensor([[1.0, 0.5, float("nan"), 9.0]])
    valid = torch.tensor([[True, True, True, False]])
    advantage, scale = torch.tensor([[1.0, -1.0, 5.0, 7.0]]), torch.tensor([[0.5, 0.5, 0.5, 0.0]])
    credit = undetached_cap_advantages(advantage, log_ratio, scale, valid=valid)
    small = undetached_cap_advantages(advantage[:, :2], log_ratio[:, :2], scale[:, :2])
    assert group_mass(log_ratio, valid=valid).item() > 1.2
    torch.testing.assert_close(credit, torch.cat([small, torch.zeros(1, 2)], dim=-1))


def test_shapes_that_do_not_fit_are_named():
    weight = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match="reference has shape"):
        match_group_mean(weight, torch.ones(2, 3), torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="scale has shape"):
        undetached_cap_advantages(torch.ones(2, 3), torch.zeros(2, 3), torch.ones(3))
