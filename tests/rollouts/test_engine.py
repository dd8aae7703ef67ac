"""The engine's log-probs are those of the sampling distribution, and the learner's pass finds the same numbers."""

import pytest
import torch

from gmc_core.rollouts.engine import TransformersEngine, sample_tokens
from gmc_core.rollouts.policy import response_log_probs, snapshot
from gmc_core.rollouts.scoring import evaluate, response_texts, score_groups
from gmc_core.rollouts.tasks import Prompt, RunningSums
from gmc_core.rollouts.trajectories import Batch
from tests.models import random_policy

EQUAL = [Prompt("1+2=", "3"), Prompt("4+5=", "9"), Prompt("7+7=", "4")]
RAGGED = [Prompt("1+2=", "3"), Prompt("4+5+6+7=", "2"), Prompt("7+7+1=", "5")]


def generate(engine, prompts, *, seed=0, temperature=1.0, group_size=4, max_new_tokens=6):
    return engine.generate(
        prompts,
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
    )


def zero_rewards(groups):
    from dataclasses import replace

    return [replace(group, reward_G=torch.zeros(group.size)) for group in groups]


@pytest.mark.parametrize("prompts", [EQUAL, RAGGED], ids=["equal prompts", "ragged prompts"])
def test_temperature_0_is_greedy(prompts):
    policy = random_policy()
    for group in generate(TransformersEngine(policy), prompts, temperature=0.0, group_size=2):
        assert torch.equal(group.response_GT[0], group.response_GT[1])
        tokens = torch.cat([group.prompt_tokens_L, group.response_GT[0][group.mask_GT[0]]])
        logits = policy.model(input_ids=tokens[None]).logits[0, len(group.prompt_tokens_L) - 1 : -1]
        response = tokens[len(group.prompt_tokens_L) :]
        assert torch.equal(logits.argmax(-1), response)
        logp = logits.log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)
        torch.testing.assert_close(group.behavior_logp_GT[0][group.mask_GT[0]], logp, atol=1e-5, rtol=0)


@pytest.mark.parametrize("prompts", [EQUAL, RAGGED], ids=["equal prompts", "ragged prompts"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("share_prefix", [True, False])
def test_behaviour_log_probs_equal_the_learners(prompts, temperature, share_prefix):
    policy = random_policy()
    groups = generate(TransformersEngine(policy), prompts, temperature=temperature)
    batch = Batch.from_groups(zero_rewards(groups), group_size=4)
    P, G, T = batch.shape
    with torch.no_grad():
        logp = response_log_probs(
            policy.model,
            batch.prompt_PL,
            batch.prompt_mask_PL,
            batch.response_PGT.flatten(0, 1),
            torch.arange(P).repeat_interleave(G),
            temperature=temperature,
            share_prefix=share_prefix,
        ).view(P, G, T)
    torch.testing.assert_close(logp[batch.mask_PGT], batch.behavior_logp_PGT[batch.mask_PGT], atol=2e-5, rtol=0)


def test_padding_of_other_prompts_does_not_matter():
    policy = random_policy()
    together = generate(TransformersEngine(policy), RAGGED, group_size=1)
    # teacher-force the same tokens alone: prompt 0 was padded beside the longer ones
    alone = Batch.from_groups(zero_rewards(together[:1]))
    logp = response_log_probs(
        policy.model, alone.prompt_PL, alone.prompt_mask_PL, alone.response_PGT[0], torch.zeros(1, dtype=torch.long)
    )
    torch.testing.assert_close(
        logp[alone.mask_PGT[0]], alone.behavior_logp_PGT[0][alone.mask_PGT[0]], atol=2e-5, rtol=0
    )


def test_end_of_sequence_ends_a_rollout_and_is_part_of_it():
    engine = TransformersEngine(random_policy())
    eos = engine.policy.eos_ids[0]
    groups = generate(engine, EQUAL, group_size=64, max_new_tokens=8)
    finished = torch.cat([group.finished_G for group in groups])
    assert 0 < finished.float().mean() < 1  # a random model does both
    for group in groups:
        for row in range(group.size):
            tokens = group.response_GT[row][group.mask_GT[row]]
            assert (tokens[:-1] != eos).all()
            assert bool(tokens[-1] == eos) == bool(group.finished_G[row])
            assert bool(group.finished_G[row]) or len(tokens) == 8


def test_versions_and_weights_follow_an_update():
    engine = TransformersEngine(random_policy(0))
    before = generate(engine, EQUAL)
    assert all((group.version_GT == 0).all() for group in before)
    engine.update_weights(snapshot(random_policy(1).model), 17)
    after, fresh = generate(engine, EQUAL), generate(TransformersEngine(random_policy(1)), EQUAL)
    assert all((group.version_GT == 17).all() for group in after)
    for group, twin in zip(after, fresh, strict=True):
        assert torch.equal(group.response_GT, twin.response_GT)


def test_same_generator_same_rollouts():
    engine = TransformersEngine(random_policy())
    first, second, other = (generate(engine, EQUAL, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.response_GT, b.response_GT) for a, b in zip(first, second, strict=True))
    assert any(not torch.equal(a.response_GT, b.response_GT) for a, b in zip(first, other, strict=True))


def test_sampled_frequencies_match_their_log_probs():
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0], [1.0, 1.0, 0.0, 0.0]])
    node = torch.arange(40_000) % 2
    token, logp = sample_tokens(logits, node, 0.5, torch.Generator().manual_seed(0))
    expected = torch.softmax(logits / 0.5, -1)
    for k in range(2):
        seen = torch.bincount(token[node == k], minlength=4) / 20_000
        torch.testing.assert_close(seen, expected[k], atol=0.01, rtol=0)
    torch.testing.assert_close(logp, expected[node, token].log())


def test_rollouts_that_share_prefixes_are_still_independent_samples():
    """Joint frequencies of two tokens against the product of the model's conditionals."""
    engine = TransformersEngine(random_policy())
    (group,) = generate(engine, EQUAL[:1], group_size=40_000, max_new_tokens=2)
    pairs = group.response_GT[:, 0] * 16 + group.response_GT[:, 1]
    ended = group.response_GT[:, 0] == engine.policy.eos_ids[0]
    logp = (group.behavior_logp_GT * group.mask_GT).sum(-1)
    seen = torch.bincount(pairs[~ended], minlength=256) / 40_000
    for pair in seen.topk(20).indices:
        expected = logp[(pairs == pair) & ~ended][0].exp()
        assert abs(seen[pair] - expected) < 5 * (expected / 40_000) ** 0.5


def test_scoring_reads_text_without_special_tokens():
    engine, task = TransformersEngine(random_policy()), RunningSums(digits=2)
    groups = generate(engine, EQUAL)
    for group in score_groups(groups, task, engine.policy.tokenizer):
        texts = response_texts(engine.policy.tokenizer, group)
        assert not any("<" in text for text in texts)
        expected = [
            task.reward(group.prompt, text, bool(end)) for text, end in zip(texts, group.finished_G, strict=True)
        ]
        assert group.reward_G.tolist() == expected


def test_evaluation_counts_and_complains():
    engine, task = TransformersEngine(random_policy()), RunningSums(digits=2)
    result = evaluate(engine, engine.policy.tokenizer, task, EQUAL, generator=torch.Generator(), samples=5)
    assert result.rewards_PG.shape == (3, 5)
    assert result.accuracy == result.rewards_PG.mean().item()
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(engine, engine.policy.tokenizer, task, [], generator=torch.Generator())


def test_empty_prompt_is_named():
    with pytest.raises(ValueError, match="no tokens"):
        generate(TransformersEngine(random_policy()), [Prompt("", "1")])
