"""Theorem 1 on policies whose expectation is exact: the one-step ascent inequality and whole delayed runs."""

import math

import pytest
import torch

from gmc_core.estimators.bounds import biased_sgd_bound, excess_bound
from gmc_core.estimators.enumerable import EnumerablePolicy, chi_square_divergence, response_space
from gmc_core.estimators.exact_moments import enumerate_groups, exact_moments
from gmc_core.estimators.weights import make_estimator

SMOOTHNESS = 0.5  # of J for a softmax over responses with rewards in [0, 1]
SPACE = response_space(3, 1, end_token=False)
BASELINE = 0.5


@pytest.mark.parametrize("name", ["gmc", "tic_truncate", "tic_mask"])
@pytest.mark.parametrize("seed", range(6))
def test_one_step_in_exact_expectation(name, seed):
    """[2e] E J(theta + eta g) >= J + eta/2 ||grad J||^2 - eta/2 ||bias||^2 - L eta^2/2 E||g||^2."""
    generator = torch.Generator().manual_seed(seed)
    logits, drift = torch.randn(2, 1, 3, generator=generator, dtype=torch.float64)
    reward = torch.rand(3, generator=generator, dtype=torch.float64)
    current, behavior = EnumerablePolicy(SPACE, logits), EnumerablePolicy(SPACE, logits + drift)
    estimator, G = make_estimator(name), 3
    moments = exact_moments(estimator, current, behavior, reward, G, advantage=BASELINE)

    ((index, log_multiplicity),) = enumerate_groups(3, G)
    prob = (log_multiplicity + behavior.response_log_probs()[index].sum(-1)).exp()
    advantage = reward[index] - BASELINE
    weight = estimator(
        current.token_log_probs()[index], behavior.token_log_probs()[index], SPACE.mask[index], advantage
    )
    batch = EnumerablePolicy(SPACE, logits.expand(len(index), 1, 3))
    g = batch.surrogate_gradient(index, advantage.unsqueeze(-1) * weight / G)
    slope = moments.target.square().sum().item()
    for eta in (0.05, 0.5, 2.0):
        reached = prob @ EnumerablePolicy(SPACE, logits + eta * g).expected_reward(reward)
        promised = current.expected_reward(reward).item() + eta / 2 * (slope - moments.bias**2)
        promised -= SMOOTHNESS * eta**2 / 2 * moments.second_moment
        assert reached.item() >= promised - 1e-12


@pytest.mark.parametrize("name", ["gmc", "tic_truncate", "tic_mask"])
@pytest.mark.parametrize(("eta", "delay"), [(0.3, 5), (1.0, 20)])
def test_delayed_runs_stay_below_theorem_1(name, eta, delay):
    """[2f] mean_t ||grad J||^2 over 60 runs of 150 updates, against Theorem 1 with the bias bound of every step."""
    runs, steps, G, epsilon = 60, 150, 4, 0.2
    reward = torch.tensor([1.0, 0.4, 0.0], dtype=torch.float64)
    estimator, generator = make_estimator(name), torch.Generator().manual_seed(1)
    history = [torch.tensor([[-1.0, 0.3, 0.7]], dtype=torch.float64).expand(runs, 1, 3)]
    start = EnumerablePolicy(SPACE, history[0][0]).expected_reward(reward).item()
    squared_gradient, squared_bias, changed = [], [], 0.0
    score = math.sqrt(2)  # sup ||s|| of a softmax; |A| <= 1/2
    for t in range(steps):
        current = EnumerablePolicy(SPACE, history[-1])
        behavior = EnumerablePolicy(SPACE, history[max(0, t - delay)])
        squared_gradient.append(current.gradient(reward).square().sum((-1, -2)).mean())
        v = chi_square_divergence(current, behavior)
        squared_bias.append((BASELINE * score * excess_bound(name, v, G, epsilon)).square().mean())
        index = behavior.sample(G, generator)
        logp, logb = current.token_log_probs(index), behavior.token_log_probs(index)
        advantage = reward[index] - BASELINE
        weight = estimator(logp, logb, SPACE.mask[index], advantage)
        changed += ((weight - (logp - logb).exp()).abs() > 1e-9).any().item()
        g = current.surrogate_gradient(index, advantage.unsqueeze(-1) * weight / G)
        history.append(history[-1] + eta * g)
    bound = biased_sgd_bound(
        1 - start, eta, steps, SMOOTHNESS, ((1 + epsilon) * BASELINE * score) ** 2, torch.stack(squared_bias).mean()
    )
    assert changed > 0  # the rule was at work
    assert torch.stack(squared_gradient).mean() <= bound
