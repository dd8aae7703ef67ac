"""Enumerable policies: the list of responses, exact gradients, sampling, divergences."""

import itertools
import math

import pytest
import torch

from gmc_core.estimators.enumerable import (
    EnumerablePolicy,
    bandit_policy,
    chi_square_divergence,
    kl_divergence,
    response_space,
)


def random_policy(space, seed, *batch):
    generator = torch.Generator().manual_seed(seed)
    return EnumerablePolicy(
        space, torch.randn(*batch, space.contexts, space.vocabulary, generator=generator, dtype=torch.float64)
    )


@pytest.mark.parametrize(("vocabulary", "length", "responses", "contexts"), [(2, 3, 4, 3), (3, 2, 7, 3), (3, 3, 15, 7)])
def test_responses_with_an_end_token(vocabulary, length, responses, contexts):
    space = response_space(vocabulary, length)
    assert (space.responses, space.contexts, space.max_length) == (responses, contexts, length)
    rows = {tuple(t[m].tolist()) for t, m in zip(space.tokens, space.mask, strict=True)}
    assert len(rows) == responses  # all different
    for row in rows:
        assert vocabulary - 1 not in row[:-1]  # nothing after the end
        assert row[-1] == vocabulary - 1 or len(row) == length  # every response ends or is cut


def test_responses_without_an_end_token_are_all_strings():
    space = response_space(3, 2, end_token=False)
    assert {tuple(row) for row in space.tokens.tolist()} == set(itertools.product(range(3), repeat=2))
    assert space.mask.all()


def test_tokens_share_a_context_exactly_when_their_prefixes_agree():
    space = response_space(3, 3)
    for k, j in itertools.product(range(space.responses), repeat=2):
        for t in range(3):
            if space.mask[k, t] and space.mask[j, t]:
                same = space.tokens[k, :t].tolist() == space.tokens[j, :t].tolist()
                assert (space.context[k, t] == space.context[j, t]).item() == same


def test_probabilities_sum_to_one_and_match_the_product_of_token_probabilities():
    policy = random_policy(response_space(3, 3), 0, 4)
    torch.testing.assert_close(policy.probabilities().sum(-1), torch.ones(4, dtype=torch.float64))
    by_hand = torch.softmax(policy.logits[2], -1)
    space, k = policy.space, 6
    expected = math.prod(by_hand[space.context[k, t], space.tokens[k, t]].item() for t in range(3) if space.mask[k, t])
    assert policy.probabilities()[2, k].item() == pytest.approx(expected, rel=1e-12)


def test_gradients_equal_autograd():
    space = response_space(3, 3)
    policy = random_policy(space, 1, 5)
    policy.logits.requires_grad_(True)
    reward = torch.linspace(0, 1, space.responses, dtype=torch.float64)
    (expected,) = torch.autograd.grad(policy.expected_reward(reward).sum(), policy.logits)
    torch.testing.assert_close(policy.gradient(reward), expected)

    generator = torch.Generator().manual_seed(2)
    index = policy.sample(6, generator)
    coefficient = torch.rand(5, 6, 3, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad((coefficient * policy.token_log_probs(index)).sum(), policy.logits)
    torch.testing.assert_close(policy.surrogate_gradient(index, coefficient), expected)
    scores = policy.token_scores()
    chosen = torch.stack([scores[e][index[e]] for e in range(5)])
    torch.testing.assert_close(torch.einsum("egt,egtcv->ecv", coefficient, chosen), expected)


def test_masked_tokens_are_inert():
    policy = random_policy(response_space(2, 3), 3)
    coefficient = torch.ones(4, 3, dtype=torch.float64)
    poisoned = torch.where(policy.space.mask, coefficient, torch.nan)
    torch.testing.assert_close(
        policy.surrogate_gradient(None, poisoned), policy.surrogate_gradient(None, coefficient), equal_nan=False
    )
    assert (policy.token_log_probs()[~policy.space.mask] == 0).all()


def test_scores_have_mean_zero():
    policy = random_policy(response_space(3, 3), 4)
    mean = torch.einsum("k,kcv->cv", policy.probabilities(), policy.scores())
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-14, rtol=0)


def test_sampling_follows_the_probabilities_and_the_generator():
    policy = random_policy(response_space(2, 3), 5, 2)
    draws = policy.sample(20_000, torch.Generator().manual_seed(0))
    assert draws.shape == (2, 20_000)
    assert torch.equal(draws, policy.sample(20_000, torch.Generator().manual_seed(0)))
    assert not torch.equal(draws, policy.sample(20_000, torch.Generator().manual_seed(1)))
    for e in range(2):
        p = policy.probabilities()[e]
        frequency = torch.bincount(draws[e], minlength=4).double() / 20_000
        assert ((frequency - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all()


def test_divergences():
    current, behavior = bandit_policy(torch.tensor([0.6, 0.4])), bandit_policy(torch.tensor([0.3, 0.7]))
    assert chi_square_divergence(current, behavior).item() == pytest.approx(0.36 / 0.3 + 0.16 / 0.7 - 1, rel=1e-5)
    assert kl_divergence(current, behavior).item() == pytest.approx(0.6 * math.log(2) + 0.4 * math.log(4 / 7), rel=1e-5)
    assert kl_divergence(current, current).item() == 0.0


def test_chi_square_of_a_drift_is_quadratic_and_below_the_lipschitz_bound():
    """theory.md section 4, A7: chi^2 ~ delta' F delta, and <= (e^{S |delta|} - 1)^2 with S = sqrt 2 for a softmax."""
    from gmc_core.estimators.bounds import drift_chi_square_bound

    start = torch.tensor([0.1257, -0.1321, 0.6404, 0.1049, -0.5357], dtype=torch.float64)
    direction = torch.tensor([0.5, -0.2, 0.4, -0.7, 0.1], dtype=torch.float64)
    direction = direction / direction.norm()
    p = torch.softmax(start, 0)
    fisher = direction @ (torch.diag(p) - torch.outer(p, p)) @ direction
    space = response_space(5, 1, end_token=False)
    distance = torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64)
    moved = EnumerablePolicy(space, (start + distance[:, None] * direction)[:, None, :])
    v = chi_square_divergence(moved, EnumerablePolicy(space, start.expand(3, 1, 5)))
    slope = (v[1] / v[0]).log() / math.log(2)
    assert slope.item() == pytest.approx(2, abs=0.03)
    assert (v[0] / distance[0] ** 2).item() == pytest.approx(fisher.item(), rel=0.02)
    assert (v <= drift_chi_square_bound(distance, math.sqrt(2))).all()


def test_chi_square_of_a_product_of_tokens():
    """(1 + v_1)^L - 1 for L i.i.d. Bernoulli tokens, .55 against .50, enumerated (L = 6)."""
    from gmc_core.estimators.bounds import product_chi_square

    space = response_space(2, 6, end_token=False)
    current, behavior = (
        EnumerablePolicy(space, torch.tensor([p, 1 - p], dtype=torch.float64).log().expand(space.contexts, 2))
        for p in (0.55, 0.50)
    )
    v1 = 0.55**2 / 0.5 + 0.45**2 / 0.5 - 1
    assert chi_square_divergence(current, behavior).item() == pytest.approx(product_chi_square(v1, 6), rel=1e-12)
    assert product_chi_square(v1, 500) == pytest.approx(143.77, abs=0.01)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="vocabulary >= 2"):
        response_space(1, 3)
    space = response_space(2, 3)
    with pytest.raises(ValueError, match=r"\(contexts, vocabulary\) = \(3, 2\)"):
        EnumerablePolicy(space, torch.zeros(2, 2))
