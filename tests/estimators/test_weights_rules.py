"""Trajectory-level and token-level rules on cases done by hand, and their limits."""

import math

import pytest
import torch

from gmc_core import (
    gmc_weights,
    make_estimator,
    tic_weights,
)
from gmc_core.estimators import (
    cispo_weights,
    gepo_weights,
    gspo_weights,
    icepop_weights,
    is_weights,
    m2po_weights,
    ppo_clip_weights,
    seq_mis_weights,
    token_tis_weights,
    topr_weights,
    uncorrected_weights,
    vespo_weights,
)

TOKEN_LEVEL = {"ppo_clip", "cispo", "token_tis", "icepop", "m2po"}


def _step(scale=0.3, seed=0, shape=(5, 8, 7)):
    generator = torch.Generator().manual_seed(seed)
    current = -3 * torch.rand(shape, generator=generator) - 0.1
    behavior = current + scale * torch.randn(shape, generator=generator)
    length = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator)
    mask = torch.arange(shape[-1]) < length.unsqueeze(-1)
    advantage = torch.randn(shape[:-1], generator=generator)
    return current, behavior, mask, advantage


# Trajectory level


def test_tic_variants():
    log_ratio = torch.tensor([0.5, 1.1999, 1.2001, 50.0]).log()
    assert tic_weights(log_ratio).tolist() == pytest.approx([0.5, 1.1999, 0, 0])
    assert tic_weights(log_ratio, variant="truncate").tolist() == pytest.approx([0.5, 1.1999, 1.2, 1.2])
    assert tic_weights(torch.tensor([1000.0]), variant="truncate").item() == pytest.approx(1.2)


def test_tic_depends_on_one_rollout_and_gmc_on_the_group():
    log_ratio = torch.tensor([0.1, 0.2, 0.1, -0.3])
    changed = log_ratio.clone()
    changed[3] = 4.0
    for variant in ("mask", "truncate"):
        before, after = tic_weights(log_ratio, variant=variant), tic_weights(changed, variant=variant)
        assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(gmc_weights(log_ratio)[:3], gmc_weights(changed)[:3])


def test_sequence_masked_importance_sampling():
    assert seq_mis_weights(torch.tensor([0.4, 1.99, 2.01]).log()).tolist() == pytest.approx([0.4, 1.99, 0])


def test_topr_tapers_negative_rollouts_only():
    log_ratio = torch.tensor([0.25, 4.0, 0.25, 4.0, 4.0]).log()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    assert topr_weights(log_ratio, advantage).tolist() == pytest.approx([1, 1, 0.25, 1, 1])


def test_gspo_clips_the_geometric_mean_ratio_by_sign():
    s = torch.tensor([1.0002, 1.001, 0.9, 1.001, 0.9, 0.9998])
    advantage = torch.tensor([1.0, 1, 1, -1, -1, -1])
    length = torch.tensor([10, 20, 30, 40, 50, 60])
    weight = gspo_weights(s.double().log() * length, length, advantage)
    assert weight.tolist() == pytest.approx([1.0002, 0, 0.9, 1.001, 0, 0.9998], rel=1e-6)


def test_gepo_divides_by_the_group_expectation_of_behavior_probabilities():
    p, q = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.4, 0.4, 0.1])
    expected_q = (0.16 + 0.16 + 0.01) / 0.9
    raw = p / expected_q  # 1.36, 0.55, 0.82
    unclipped = gepo_weights(p.log(), q.log(), torch.tensor([1.0, 1.0, -1.0]), 1.0, 10.0)
    torch.testing.assert_close(unclipped, raw)
    clipped = gepo_weights(p.log(), q.log(), torch.tensor([1.0, 1.0, -1.0]))
    torch.testing.assert_close(clipped, raw * torch.tensor([0.0, 1.0, 1.0]))
    dropped = gepo_weights(p.log(), q.log(), torch.tensor([-1.0, -1.0, -1.0]))
    torch.testing.assert_close(dropped, raw * torch.tensor([1.0, 0.0, 1.0]))
    # very long responses: probabilities far below the range of float32 stay in log space
    tiny = gepo_weights(p.log() - 500, q.log() - 500, torch.ones(3), 1.0, 10.0)
    torch.testing.assert_close(tiny, raw, rtol=1e-4, atol=0)


def test_gepo_takes_geometric_means_over_tokens():
    current, behavior, mask, advantage = _step()
    length = mask.sum(-1)
    p, q = ((x * mask).sum(-1) / length for x in (current, behavior))
    expected = gepo_weights(p, q, advantage)
    weight = make_estimator("gepo")(current, behavior, mask, advantage)
    torch.testing.assert_close(weight, torch.where(mask, expected.unsqueeze(-1), 0.0))


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_trajectory_functions_give_a_rollout_without_ratio_weight_zero(fault):
    log_ratio, advantage = torch.tensor([0.1, fault, 0.1]), torch.ones(3)
    for weight in (
        uncorrected_weights(log_ratio),
        is_weights(log_ratio),
        tic_weights(log_ratio),
        tic_weights(log_ratio, variant="truncate"),
        seq_mis_weights(log_ratio),
        topr_weights(log_ratio, advantage),
        gspo_weights(log_ratio, torch.ones(3), advantage, 1.0, 1.0),
        gepo_weights(log_ratio, torch.zeros(3), advantage, 1.0, 1.0),
        vespo_weights(log_ratio, advantage),
    ):
        assert weight[1] == 0 and weight[0] > 0 and weight[0] == weight[2]


def test_vespo_kernel():
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0, 1.0, 1.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    k, decay = torch.tensor([2.0, 3, 2, 3, 2, 3]), torch.tensor([3.0, 2, 3, 2, 3, 2])
    torch.testing.assert_close(vespo_weights(ratio.log(), advantage), ratio**k * torch.exp(decay * (1 - ratio)))
    extreme = vespo_weights(torch.tensor([1000.0, -1000.0, -math.inf]), torch.ones(3))
    assert extreme.tolist() == [0.0, 0.0, 0.0]
    assert vespo_weights(torch.tensor([-math.inf]), torch.ones(1), 0.0, 1.0).item() == pytest.approx(math.e)


# Token level


def _tokens(*rho):
    return torch.tensor([rho]).log(), torch.ones(1, len(rho), dtype=torch.bool)


def test_ppo_clip_by_sign():
    log_rho, mask = _tokens(0.5, 0.9, 1.1, 1.3, 40.0)
    positive = ppo_clip_weights(log_rho, torch.tensor([2.0]), mask)
    negative = ppo_clip_weights(log_rho, torch.tensor([-2.0]), mask)
    assert positive[0].tolist() == pytest.approx([0.5, 0.9, 1.1, 0, 0])
    assert negative[0].tolist() == pytest.approx([0, 0.9, 1.1, 1.3, 40.0])
    dapo = ppo_clip_weights(log_rho, torch.tensor([2.0]), mask, 0.2, 0.28)
    assert dapo[0].tolist() == pytest.approx([0.5, 0.9, 1.1, 0, 0])


def test_cispo_token_tis_and_icepop():
    log_rho, mask = _tokens(0.01, 0.5, 1.1, 3.0, 6.0)
    assert cispo_weights(log_rho, mask)[0].tolist() == pytest.approx([0.01, 0.5, 1.1, 1.2, 1.2])
    assert cispo_weights(log_rho, mask, 0.2, 4.0)[0].tolist() == pytest.approx([0.8, 0.8, 1.1, 3.0, 5.0])
    assert token_tis_weights(log_rho, mask)[0].tolist() == pytest.approx([0.01, 0.5, 1.1, 2, 2])
    assert icepop_weights(log_rho, mask)[0].tolist() == pytest.approx([0, 0.5, 1.1, 3.0, 0])


def test_m2po_masks_the_fewest_outward_tokens():
    log_rho = torch.tensor([[0.5, 0.3, -0.4, 0.1, 0.0], [-0.6, 0.2, 0.0, 0.0, 0.0]])
    mask = torch.ones(2, 5, dtype=torch.bool)
    advantage = torch.tensor([1.0, -1.0])
    # outward: +.5, +.3, +.1 of the first rollout and -.6 of the second; squares .25 .09 .01 .36, others .16 .04
    weight = m2po_weights(log_rho, advantage, mask)
    kept = torch.ones(2, 5, dtype=torch.bool)
    kept[0, 0] = kept[1, 0] = False
    assert torch.equal(weight, torch.where(kept, log_rho.exp(), 0.0))
    assert log_rho[kept].square().mean() <= 0.04  # .30 / 8
    kept[0, 0] = True
    assert log_rho[kept].square().mean() > 0.04  # one fewer would not do
    assert torch.equal(m2po_weights(log_rho, advantage, mask, 1.0), log_rho.exp())


def test_m2po_never_masks_inward_tokens_and_survives_infinite_ratios():
    log_rho = torch.tensor([[-2.0, 0.3, -math.inf]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert m2po_weights(log_rho, torch.tensor([1.0]), mask)[0].tolist() == pytest.approx([math.exp(-2), 0.0, 0.0])
    weight = m2po_weights(log_rho[:, 1:], torch.tensor([-1.0]), mask[:, 1:], 0.1)
    assert weight[0].tolist() == pytest.approx([math.exp(0.3), 0.0])  # only the infinite one is outward


def test_m2po_equals_masking_one_token_at_a_time():
    generator = torch.Generator().manual_seed(5)
    masked_some = 0
    for _ in range(40):
        log_rho = 0.35 * torch.randn((4, 9), generator=generator, dtype=torch.float64)
        advantage = torch.randn(4, generator=generator, dtype=torch.float64)
        mask = torch.rand((4, 9), generator=generator) < 0.8
        kept = mask.clone()
        outward = mask & (log_rho * advantage.unsqueeze(-1) > 0)
        while kept.any() and log_rho[kept].square().mean() > 0.04 and (kept & outward).any():
            worst = torch.where(kept & outward, log_rho.square(), -1.0).argmax()
            kept.view(-1)[worst] = False
            masked_some += 1
        assert torch.equal(m2po_weights(log_rho, advantage, mask), torch.where(kept, log_rho.exp(), 0.0))
    assert masked_some > 40


def test_token_functions_leave_out_a_rollout_with_a_token_of_no_ratio():
    log_rho = torch.tensor([[0.1, math.nan, 0.1], [0.1, 0.1, 0.1]])
    mask, advantage = torch.ones(2, 3, dtype=torch.bool), torch.ones(2)
    expected = torch.tensor([[0.0] * 3, [math.exp(0.1)] * 3])
    for weight in (
        ppo_clip_weights(log_rho, advantage, mask),
        cispo_weights(log_rho, mask),
        token_tis_weights(log_rho, mask),
        icepop_weights(log_rho, mask),
        m2po_weights(log_rho, advantage, mask),
    ):
        torch.testing.assert_close(weight, expected)
    ignored = torch.tensor([[1, 0, 1], [1, 1, 1]])
    torch.testing.assert_close(token_tis_weights(log_rho, ignored), expected[1:] * ignored)


@pytest.mark.parametrize("name", sorted(TOKEN_LEVEL))
def test_a_poisoned_token_silences_its_whole_rollout(name):
    current, behavior, mask, advantage = _step()
    behavior[2, 3, 0] = math.nan
    weight = make_estimator(name)(current, behavior, mask, advantage)
    assert (weight[2, 3] == 0).all() and (weight[2, 2][mask[2, 2]] > 0).any()
