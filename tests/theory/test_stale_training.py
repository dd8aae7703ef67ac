"""Training with delay: limits, a case computed by hand, reproducibility, and the comparison's bookkeeping."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from gmc_core.estimators import make_estimator
from gmc_core.estimators.enumerable import EnumerablePolicy, response_space
from gmc_core.theory.stale_comparison import compare_under_delay
from gmc_core.theory.stale_training import Environments, delayed_gradient, random_environments, train_with_delay


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tasks() -> Environments:
    return random_environments(3, seeded(), vocabulary=3, max_length=3)


def train(name, delay, tasks, **options):
    options = {"group_size": 8, "learning_rate": 1.0, "updates": 6, "record_every": 3} | options
    return train_with_delay(make_estimator(name), delay, environments=tasks, generator=seeded(1), **options)


@pytest.mark.parametrize("name", ["is", "snis", "tic_mask", "tic_truncate", "water_filling", "ppo_clip", "m2po"])
def test_without_delay_every_correction_is_no_correction(tasks, name):
    """At zero staleness all weights are 1, so GMC and the others walk the same path."""
    run, gmc = train(name, 0, tasks, updates=3), train("gmc", 0, tasks, updates=3)
    assert_close(run.returns, gmc.returns)
    assert_close(run.divergence, torch.zeros_like(run.divergence))
    assert not torch.equal(gmc.returns[:, 0], gmc.returns[:, -1])


def test_with_delay_they_part(tasks):
    finals = [train(name, 4, tasks, learning_rate=20.0).final_return for name in ("gmc", "tic_mask", "uncorrected")]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in itertools.combinations(finals, 2))


def two_answers(reward: tuple[float, float]) -> Environments:
    """One prompt, two one-token answers, starting at probability 1/2."""
    space = response_space(2, 1, end_token=False)
    return Environments(space, torch.tensor([reward], dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64))


@pytest.mark.parametrize(("delay", "weighted"), [(0, False), (1, True)])
def test_two_updates_by_hand(delay, weighted):
    """Two answers with logits z and -z: the first update is on-policy; the second uses a group of theta_0 if delay = 1.

    A group with k of G answers right (reward 1) has A = 1 - k/G or -k/G, and sum A_i s_i = k (1 - k/G) (1, -1) with
    weights 1. Full importance sampling weighs a right answer with p/0.5 and a wrong one with (1-p)/0.5 in update 2.
    """
    G, rate, tasks = 4, 2.0, two_answers((1.0, 0.0))
    policy_0 = EnumerablePolicy(tasks.space, tasks.logits)
    for seed in range(50):  # a seed whose two groups are mixed, so that both updates move
        draws = seeded(seed)
        right_0 = int((policy_0.sample(G, draws) == 0).sum())
        z = rate * right_0 / G * (1 - right_0 / G)  # logits (z, -z) after update 1
        p = torch.sigmoid(torch.tensor(2 * z, dtype=torch.float64))
        policy_1 = EnumerablePolicy(tasks.space, torch.tensor([[[z, -z]]], dtype=torch.float64))
        behavior = policy_1 if delay == 0 else policy_0
        right_1 = int((behavior.sample(G, draws) == 0).sum())
        if 0 < right_0 < G and 0 < right_1 < G:
            break
    share = right_1 / G
    w_right, w_wrong = (float(p) / 0.5, float(1 - p) / 0.5) if weighted else (1.0, 1.0)
    # score of the right answer: (1-p)(1,-1); of the wrong one: -p(1,-1)
    step = share * w_right * (1 - share) * (1 - p) + (1 - share) * w_wrong * share * p
    expected = torch.sigmoid(2 * (z + rate * step))
    run = train_with_delay(
        make_estimator("is"), delay, environments=tasks, generator=seeded(seed), group_size=G, learning_rate=rate,
        updates=2, record_every=1,
    )  # fmt: skip
    assert_close(run.returns[0, 0], torch.tensor(0.5, dtype=torch.float64))
    assert_close(run.returns[0, 1], p)
    assert_close(run.returns[0, 2], expected)
    assert run.updates.tolist() == [0, 1, 2]


def test_behaviour_is_the_policy_of_delay_updates_ago(tasks):
    """The recorded KL is that between theta_t and theta_{t - min(t, delay)} of the recorded path, for every delay."""
    delays = [0, 1, 4]
    run = train("gmc", delays, tasks, record_every=1, keep_path=True)
    for row, delay in enumerate(delays):
        for update in (0, 1, 3, 6):
            now = EnumerablePolicy(tasks.space, run.path[row, :, update])
            then = EnumerablePolicy(tasks.space, run.path[row, :, update - min(update, delay)])
            log_ratio = now.response_log_probs() - then.response_log_probs()
            assert_close(run.divergence[row, :, update], (now.probabilities() * log_ratio).sum(-1))
    assert_close(run.path[..., -1, :, :], run.logits)


def test_grid_of_delays_and_rates_has_their_shape_and_separate_runs(tasks):
    run = train("gmc", torch.tensor([[0], [4]]), tasks, learning_rate=[0.0, 0.5, 2.0])
    assert run.returns.shape == (2, 3, 3, 3) and run.logits.shape == (2, 3, 3, *tasks.logits.shape[1:])
    assert run.updates.tolist() == [0, 3, 6]
    still = run.returns[:, 0]
    assert_close(still, still[..., :1].expand_as(still))
    assert float((run.returns[:, 2, :, -1] - run.returns[:, 1, :, -1]).abs().min()) > 0
    assert_close(run.mean_return[:, 0], still[..., 0])


def test_same_generator_same_run_and_another_differs(tasks):
    first, again = train("gmc", 4, tasks), train("gmc", 4, tasks)
    assert torch.equal(first.returns, again.returns) and torch.equal(first.logits, again.logits)
    other = train_with_delay(
        make_estimator("gmc"), 4, environments=tasks, generator=seeded(2), group_size=8, learning_rate=1.0, updates=6,
        record_every=3,
    )  # fmt: skip
    assert not torch.equal(first.returns, other.returns)


def test_uncorrected_step_has_the_expectation_of_the_delayed_gradient(tasks):
    """Mean over many sampled updates against the exact sum, and equal to grad J without delay."""
    policy = EnumerablePolicy(tasks.space, torch.randn(tasks.logits.shape, generator=seeded(3), dtype=torch.float64))
    assert_close(delayed_gradient(policy, policy, tasks.reward), policy.gradient(tasks.reward))
    behavior = EnumerablePolicy(tasks.space, tasks.logits)
    index = behavior.sample(200_000, seeded(4))
    reward = tasks.reward.gather(-1, index)
    mask = tasks.space.mask[index]
    coefficient = ((reward - reward.mean(-1, keepdim=True)) / index.shape[-1]).unsqueeze(-1).expand(mask.shape)
    sampled = policy.surrogate_gradient(index, coefficient)
    assert_close(sampled, delayed_gradient(policy, behavior, tasks.reward), atol=4e-3, rtol=0)


def test_overflowing_update_is_skipped_and_counted(tasks):
    run = train("is", 3, tasks, learning_rate=1e101)
    assert int(run.skipped.sum()) > 0
    assert torch.isfinite(run.returns).all() and torch.isfinite(run.logits).all()


@pytest.mark.parametrize("reward", ["verifier", "graded"])
def test_random_environments(reward):
    tasks = random_environments(40, seeded(), reward=reward)
    assert len(tasks) == 40 and tasks.reward.shape == (40, 63)
    assert_close(tasks.reward.amax(-1), torch.ones(40, dtype=torch.float64))
    if reward == "verifier":
        assert set(tasks.reward.unique().tolist()) == {0.0, 1.0}
        assert abs(float(tasks.reward.mean()) - 0.1) < 0.02
    rare = random_environments(20, seeded(), reward="verifier", vocabulary=2, max_length=2, correct=0.05)
    assert bool((rare.reward.sum(-1) > 0).all())  # redrawn until something is correct


def test_comparison_tunes_and_reports_on_different_environments():
    sizes = {"environments": 4, "tuning_environments": 3, "updates": 8, "group_size": 4, "record_every": 4}
    one = compare_under_delay("gmc", (2, 6), learning_rates=(3.0, 0.0001), common_rate=0.5, **sizes)
    assert one.tuning_return.shape == (2, 2) and one.common.returns.shape == (2, 4, 3)
    assert one.learning_rates == (0.0001, 3.0)
    assert one.best_rate.tolist() == [3.0, 3.0] and one.edge == [True, True]
    assert bool((one.best.final_return.mean(-1) > one.common.final_return.mean(-1)).all())
    other = compare_under_delay("uncorrected", (2, 6), learning_rates=(3.0, 0.0001), common_rate=0.5, **sizes)
    assert torch.equal(one.common.returns[..., 0], other.common.returns[..., 0])  # the same tasks: paired
    assert not torch.equal(one.common.returns, other.common.returns)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: train("gmc", -1, t), "delay must be whole numbers of updates >= 0"),
        (lambda t: train("gmc", torch.tensor(1.5), t), "delay must be whole"),
        (lambda t: train("gmc", 1, t, group_size=1), "group_size must be >= 2"),
        (lambda t: random_environments(0, seeded()), "count >= 1"),
        (lambda t: random_environments(2, seeded(), reward="dense"), "known: verifier, graded"),
        (lambda t: compare_under_delay("gmc", (1,), learning_rates=(0.0, 1.0)), "step sizes must be > 0"),
        (lambda t: compare_under_delay("gcm", (1,)), "gmc"),
    ],
)
def test_bad_input_is_named(tasks, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(tasks)
