"""What was sampled once is the same, bit by bit, as what would be sampled again; anything else is sampled."""

import pytest
import torch

from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.remembered import RememberingEngine, RolloutMemory
from gmc_core.rollouts.tasks import Prompt
from tests.models import random_policy

PROMPTS = [Prompt("1+2=", "3"), Prompt("4+5+6+7=", "2")]
CALL = {"group_size": 4, "max_new_tokens": 6, "temperature": 1.0}


def sample(engine, prompts=PROMPTS, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    return engine.generate(prompts, **(CALL | changes), generator=generator), generator.get_state()


def same(first, second):
    return all(
        one.prompt == other.prompt and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
        for one, other in zip(first, second, strict=True)
    )


def test_the_same_question_is_sampled_once_and_answered_alike():
    memory = RolloutMemory()
    expected, state = sample(TransformersEngine(random_policy()))
    for hits in range(3):  # of other engines with the same policy, as in other runs of the process
        groups, after = sample(RememberingEngine(TransformersEngine(random_policy()), memory))
        assert same(groups, expected) and torch.equal(after, state)
        assert memory.hits == hits
        groups.clear()  # the list is the caller's


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"group_size": 3},
        {"max_new_tokens": 5},
        {"temperature": 0.9},
        {"prompts": PROMPTS[::-1]},
        {"prompts": [PROMPTS[0], Prompt("4+5+6+7=", "9")]},  # the same text, another reference answer
    ],
    ids=str,
)
def test_another_question_is_another_sample(changes):
    memory = RolloutMemory()
    engine = RememberingEngine(TransformersEngine(random_policy()), memory)
    sample(engine)
    groups, _ = sample(engine, **changes)
    assert memory.hits == 0
    assert same(groups, sample(TransformersEngine(random_policy()), **changes)[0])


def test_another_policy_or_encoding_is_another_sample():
    memory = RolloutMemory()
    sample(RememberingEngine(TransformersEngine(random_policy()), memory))
    other = random_policy(1)
    groups, _ = sample(RememberingEngine(TransformersEngine(other), memory))
    assert same(groups, sample(TransformersEngine(other))[0])

    class Reversed(PromptEncoder):
        def __call__(self, prompt):
            return super().__call__(prompt)[::-1]

    policy = random_policy()
    groups, _ = sample(RememberingEngine(TransformersEngine(policy, encode=Reversed(policy.tokenizer)), memory))
    assert same(groups, sample(TransformersEngine(policy, encode=Reversed(policy.tokenizer)))[0])
    assert memory.hits == 0


def test_a_policy_that_has_learnt_is_not_taken_for_the_initial_one():
    memory = RolloutMemory()
    engine = RememberingEngine(TransformersEngine(random_policy()), memory)
    first, _ = sample(engine)
    engine.update_weights(snapshot(random_policy(1).model), 1)
    assert engine.policy_version == 1
    later, _ = sample(engine)
    assert memory.hits == 0 and not same(later, first)
    assert all(torch.equal(group.version_GT, torch.ones_like(group.version_GT)) for group in later)


def test_the_batch_unused_for_longest_is_forgotten():
    memory = RolloutMemory(largest=2)
    engine = RememberingEngine(TransformersEngine(random_policy()), memory)
    for seed, hits in ((0, 0), (1, 0), (0, 1), (2, 1), (0, 2), (1, 2)):
        sample(engine, seed=seed)
        assert memory.hits == hits
