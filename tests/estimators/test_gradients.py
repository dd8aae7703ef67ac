"""The one surrogate loss with detached weights has the gradient of each method's own objective.

The literal objectives are written out here, differentiated by autograd through their ratios and clips, and compared.
"""

import pytest
import torch

from gmc_core import loss_normalizer, make_estimator, policy_gradient_loss, trajectory_log_ratio

P, G, T, V = 3, 5, 6, 7
NORMALIZER = "sequence_mean_token_sum"


class _Problem:
    """A softmax policy with shared parameters: logits of token t of prompt p are theta[p] + phi[t]."""

    def __init__(self, seed=0, drift=0.6):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.theta = (normal(P, V)).requires_grad_()
        self.phi = (normal(T, V)).requires_grad_()
        self.tokens = torch.randint(0, V, (P, G, T), generator=generator)
        self.behavior = self.logp().detach() + drift * normal(P, G, T)
        self.length = torch.randint(1, T + 1, (P, G), generator=generator)
        self.mask = torch.arange(T) < self.length.unsqueeze(-1)
        self.advantage = normal(P, G)

    def logp(self):
        logits = self.theta[:, None, None, :] + self.phi[None, None]
        return torch.log_softmax(logits, -1).expand(P, G, T, V).gather(-1, self.tokens.unsqueeze(-1)).squeeze(-1)

    def ratios(self):
        log_rho = torch.where(self.mask, self.logp() - self.behavior, 0.0)
        return log_rho.exp(), log_rho.sum(-1).exp(), (log_rho.sum(-1) / self.length).exp()

    def gradient(self, objective):
        return torch.autograd.grad(objective, (self.theta, self.phi))

    def surrogate(self, name, normalizer, **options):
        weight = make_estimator(name, **options)(self.logp().detach(), self.behavior, self.mask, self.advantage)
        loss, _ = policy_gradient_loss(self.logp(), weight, self.advantage, self.mask, normalizer=normalizer)
        return self.gradient(-loss)


def _assert_same_gradient(problem, objective, surrogate):
    literal = problem.gradient(objective)
    assert max(part.abs().max() for part in literal) > 1e-3  # the comparison has something to compare
    for expected, actual in zip(literal, surrogate, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def _clip_objective(ratio, advantage, low, high):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)])
def test_ppo_clip_is_grpo_and_dapo(seed, low, high):
    problem = _Problem(seed)

    def per_token():
        return _clip_objective(problem.ratios()[0], problem.advantage.unsqueeze(-1), low, high) * problem.mask

    grpo = (per_token().sum(-1) / problem.length).mean()
    options = {"low": low, "high": high}
    _assert_same_gradient(problem, grpo, problem.surrogate("ppo_clip", "sequence_mean_token_mean", **options))
    dapo = per_token().sum() / problem.mask.sum()
    _assert_same_gradient(problem, dapo, problem.surrogate("ppo_clip", "token_mean", **options))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.2, 0.2)])
def test_gspo(seed, low, high):
    problem = _Problem(seed)
    _, _, s = problem.ratios()
    objective = _clip_objective(s, problem.advantage, low, high).mean()
    surrogate = problem.surrogate("gspo", "sequence_mean_token_mean", low=low, high=high)
    _assert_same_gradient(problem, objective, surrogate)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("low", "high"), [(1.0, 0.2), (0.2, 4.0)])
def test_cispo(seed, low, high):
    problem = _Problem(seed)
    rho, _, _ = problem.ratios()
    clipped = rho.clamp(1 - low, 1 + high).detach()
    objective = (clipped * problem.advantage.unsqueeze(-1) * problem.logp() * problem.mask).sum() / problem.mask.sum()
    _assert_same_gradient(problem, objective, problem.surrogate("cispo", "token_mean", low=low, high=high))


@pytest.mark.parametrize("seed", range(3))
def test_gepo(seed):
    problem = _Problem(seed)
    p = (torch.where(problem.mask, problem.logp(), 0.0).sum(-1) / problem.length).exp()
    q = (torch.where(problem.mask, problem.behavior, 0.0).sum(-1) / problem.length).exp()
    expected_q = q.square().sum(-1, keepdim=True) / q.sum(-1, keepdim=True)
    objective = _clip_objective(p / expected_q, problem.advantage, 0.2, 0.2).mean()
    _assert_same_gradient(problem, objective, problem.surrogate("gepo", "sequence_mean_token_mean"))


@pytest.mark.parametrize("seed", range(3))
def test_importance_sampling_and_tic_mask(seed):
    problem = _Problem(seed)
    _, r, _ = problem.ratios()
    objective = (r * problem.advantage).mean()
    _assert_same_gradient(problem, objective, problem.surrogate("is", "sequence_mean_token_sum"))
    _, r, _ = problem.ratios()
    objective = (r.clamp(max=1.2) * problem.advantage).mean()  # autograd of TIC-GRPO's objective masks
    _assert_same_gradient(problem, objective, problem.surrogate("tic_mask", "sequence_mean_token_sum"))


@pytest.mark.parametrize("seed", range(3))
def test_gmc_is_the_importance_sampling_gradient_of_each_group_shortened(seed):
    """docs/theory.md section 7: grad of mean sg(rho) r A; direction kept inside a group, cap active in some."""
    problem = _Problem(seed)
    _, r, _ = problem.ratios()
    shrink = (1.2 / r.mean(-1, keepdim=True)).clamp(max=1.0).detach()
    assert (shrink < 1).any()
    _assert_same_gradient(problem, (shrink * r * problem.advantage).mean(), problem.surrogate("gmc", NORMALIZER))


def test_without_the_detach_gmc_is_another_estimator():
    """An undetached active cap re-centres the advantages: mean w (A - A_w) s with A_w = sum rA / sum r."""
    problem = _Problem(1, drift=1.0)
    _, r, _ = problem.ratios()
    capped = r * (1.2 / r.mean(-1, keepdim=True)).clamp(max=1.0)
    live = problem.gradient((capped * problem.advantage).mean())
    active = r.mean(-1, keepdim=True) > 1.2
    weighted_mean = (r * problem.advantage).sum(-1, keepdim=True) / r.sum(-1, keepdim=True)
    recentered = torch.where(active, problem.advantage - weighted_mean, problem.advantage).detach()
    weight = make_estimator("gmc")(problem.logp().detach(), problem.behavior, problem.mask, problem.advantage)
    loss, _ = policy_gradient_loss(problem.logp(), weight, recentered, problem.mask, normalizer=NORMALIZER)
    for expected, actual in zip(live, problem.gradient(-loss), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    detached = problem.surrogate("gmc", NORMALIZER)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(live, detached, strict=True))


@pytest.mark.parametrize("kind", ["sequence_mean_token_sum", "sequence_mean_token_mean", "token_mean"])
def test_gradcheck(kind):
    """Finite differences agree with autograd, through half-empty masks and zero weights."""
    problem = _Problem()
    weight = make_estimator("icepop")(problem.logp().detach(), problem.behavior, problem.mask, problem.advantage)
    scale = loss_normalizer(kind, problem.mask, dtype=torch.float64)

    def loss(logp):
        return policy_gradient_loss(logp, weight, problem.advantage, problem.mask, normalizer=scale)[0]

    assert torch.autograd.gradcheck(loss, (problem.logp().detach().requires_grad_(),))


def test_gradcheck_of_the_log_ratio():
    problem = _Problem()
    current = problem.logp().detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: trajectory_log_ratio(x, problem.behavior, problem.mask), (current,))
