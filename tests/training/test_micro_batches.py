"""Every rollout once, within the budget, little padding; and the learner does not see any of it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.training.learner import Learner
from gmc_core.training.micro_batches import MOST_PADDING, SMALL, plan_micro_batches
from gmc_core.training.run_config import RunConfig
from tests.models import random_policy


def batch_of(prompts, responses, seed=0) -> Batch:
    """Random tokens: a prompt length per group, a list of response lengths per group."""
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for p, (prompt, lengths) in enumerate(zip(prompts, responses, strict=True)):
        G, T = len(lengths), max(lengths)
        groups.append(
            Group(
                prompt=Prompt(f"prompt {p}", ""),
                prompt_tokens_L=torch.randint(2, 16, (prompt,), generator=generator),
                response_GT=torch.randint(2, 16, (G, T), generator=generator),
                mask_GT=torch.arange(T) < torch.tensor(lengths).unsqueeze(1),
                behavior_logp_GT=-torch.rand(G, T, generator=generator) * 5,
                version_GT=torch.zeros(G, T, dtype=torch.long),
                finished_G=torch.ones(G, dtype=torch.bool),
                reward_G=(torch.rand(G, generator=generator) < 0.5).float(),
            )
        )
    return Batch.from_groups(groups)


def everything(batch):
    P, G, _ = batch.shape
    return torch.arange(P * G)


def lengths(batch):
    G = batch.shape[1]
    prompt = batch.prompt_mask_PL.sum(-1).repeat_interleave(G)
    return prompt, batch.mask_PGT.sum(-1).flatten()


def check(batch, rows, budget):
    plan = plan_micro_batches(batch, rows, budget)
    prompt, response = lengths(batch)
    kept = rows[response[rows] > 0]
    assert set(kept.tolist()) <= set(torch.cat([part.rows_M for part in plan]).tolist()) <= set(rows.tolist())
    assert sum(len(part.rows_M) for part in plan) == len(set(torch.cat([part.rows_M for part in plan]).tolist()))
    for part in plan:
        assert part.tokens <= budget or len(part.rows_M) == 1
        assert part.prompt_width >= prompt[part.rows_M].max() and part.response_width >= response[part.rows_M].max()
    used = int((prompt + response)[rows].sum())
    whole = len(rows) * (batch.prompt_PL.shape[-1] + batch.shape[-1])
    if whole <= budget:
        assert len(plan) == 1
    elif whole - used > MOST_PADDING * whole:
        for part in plan:
            padding = part.tokens - int((prompt + response)[part.rows_M].sum())
            assert padding <= MOST_PADDING * part.tokens or part.tokens * SMALL <= budget
    else:
        assert sum(part.tokens for part in plan) == whole
    return plan


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    groups=st.integers(1, 6),
    size=st.integers(1, 6),
    budget=st.integers(1, 3000),
    longest=st.sampled_from([3, 40, 400]),
)
def test_every_plan_keeps_its_word(data, groups, size, budget, longest):
    prompts = data.draw(st.lists(st.integers(1, 60), min_size=groups, max_size=groups))
    row = st.lists(st.integers(1, longest), min_size=size, max_size=size)
    batch = batch_of(prompts, data.draw(st.lists(row, min_size=groups, max_size=groups)))
    rows = everything(batch)[data.draw(st.integers(0, groups * size - 1)) :]
    check(batch, rows, budget)


def test_equal_lengths_are_sliced_in_their_order():
    batch = batch_of([6, 6, 5], [[10, 10, 9, 10]] * 3)
    plan = check(batch, everything(batch), 50)
    assert [part.rows_M.tolist() for part in plan] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert {(part.prompt_width, part.response_width) for part in plan} == {(6, 10)}


def test_a_long_tail_costs_no_rectangle():
    """One response of 2000 tokens in each of 8 groups of about 20: the rectangle is 30 times the tokens."""
    generator = torch.Generator().manual_seed(1)
    responses = [[2000, *torch.randint(10, 40, (15,), generator=generator).tolist()] for _ in range(8)]
    batch = batch_of([20] * 8, responses)
    rows, (prompt, response) = everything(batch), lengths(batch)
    plan = check(batch, rows, 4096)
    tokens, used = sum(part.tokens for part in plan), int((prompt + response).sum())
    assert len(rows) * (20 + 2000) > 10 * used
    assert tokens < 1.25 * used and len(plan) <= 8
    assert plan[0].response_width == 2000, "longest first"


def test_groups_of_unequal_size_leave_no_empty_rows_in_a_packed_plan():
    batch = batch_of([4, 4], [[30, 2, 2, 2, 3, 2], [2, 2]])
    rows = everything(batch)
    plan = check(batch, rows, 64)
    assert sorted(torch.cat([part.rows_M for part in plan]).tolist()) == [0, 1, 2, 3, 4, 5, 6, 7]


# --- the step is that of the whole ----------------------------------------------------------------------------------

UNEQUAL = batch_of([3, 9, 5], [[40, 2, 3, 25], [1, 1, 12, 4], [7, 30, 5, 1]], seed=3)
CONFIG = RunConfig(prompts_per_update=3, group_size=4, max_new_tokens=40, gradient_clip=None, learning_rate=0.5)


def exact_policy():
    """A policy that is float64 throughout: its norms compute in float32 by themselves."""
    policy = random_policy(0)
    policy.model.double()
    for module in policy.model.modules():
        if isinstance(module, Qwen3RMSNorm):
            exact = torch.nn.functional.rms_norm
            shape, weight, epsilon = module.weight.shape, module.weight, module.variance_epsilon
            module.forward = partial(exact, normalized_shape=shape, weight=weight, eps=epsilon)
    return policy


def gradient(config, batch):
    """The gradient of one update in float64, from the change that SGD makes."""
    policy = exact_policy()
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    metrics = Learner(policy, config).update(batch)
    after = [parameter.detach() for parameter in policy.model.parameters()]
    return [(old - new) / config.learning_rate for old, new in zip(before, after, strict=True)], metrics


@pytest.mark.parametrize("normalizer", ["sequence_mean_token_sum", "sequence_mean_token_mean", "token_mean"])
@pytest.mark.parametrize("estimator", ["gmc", "snis", "m2po", "ppo_clip"])
def test_one_micro_batch_and_many_take_the_same_step(estimator, normalizer):
    config = CONFIG.replace(estimator=estimator, normalizer=normalizer, micro_batch_tokens=10_000)
    whole, metrics = gradient(config, UNEQUAL)
    assert metrics["grad_norm"] > 1e-4
    for budget in (1, 100):
        assert len(plan_micro_batches(UNEQUAL, everything(UNEQUAL), budget)) > 1
        parts, part_metrics = gradient(config.replace(micro_batch_tokens=budget), UNEQUAL)
        torch.testing.assert_close(parts, whole, atol=1e-12, rtol=1e-9)
        assert part_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "micro_batch_tokens": 60},
        {"logits_mib": 1, "micro_batch_tokens": 200},
    ],
)
def test_what_saves_memory_changes_no_gradient(change, monkeypatch):
    whole, metrics = gradient(CONFIG, UNEQUAL)
    if "logits_mib" in change:
        monkeypatch.setattr("gmc_core.training.learner.MIB", 1)  # one byte: nothing fits, so everything is in blocks
    saved, saved_metrics = gradient(CONFIG.replace(**change), UNEQUAL)
    torch.testing.assert_close(saved, whole, atol=1e-12, rtol=1e-9)
    assert saved_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)


def test_zero_advantage_groups_are_not_run_with_gradient(monkeypatch):
    """Their gradient is exactly that of a batch whose other groups are alone, up to the number of prompts."""
    silent = replace(UNEQUAL, reward_PG=torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0]]))
    forward, with_gradient = [], []
    import gmc_core.training.learner as learner

    def counted(model, batch, rows_N, *arguments, **options):
        (with_gradient if torch.is_grad_enabled() else forward).extend(rows_N.tolist())
        return original(model, batch, rows_N, *arguments, **options)

    original = learner.rollout_log_probs
    monkeypatch.setattr(learner, "rollout_log_probs", counted)
    for budget in (60, 10_000):
        forward.clear(), with_gradient.clear()
        found, metrics = gradient(CONFIG.replace(micro_batch_tokens=budget), silent)
        assert metrics["zero_advantage_groups"] == 1
        assert sorted(with_gradient) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert set(forward) >= {4, 5, 6, 7}
    two = Batch(**{name: getattr(silent, name)[[0, 2]] for name in silent.__dataclass_fields__})
    alone, _ = gradient(CONFIG, two)
    torch.testing.assert_close(found, [2 / 3 * value for value in alone], atol=1e-9, rtol=1e-6)  # 1/3 is fp32
