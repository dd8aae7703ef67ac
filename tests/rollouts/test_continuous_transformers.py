"""Continuous generation: every token has the log-prob of the policy of its version, whatever happens in between."""

from dataclasses import replace

import pytest
import torch

from gmc_core.rollouts.continuous import ContinuousEngine, GroupRequest, generate_groups
from gmc_core.rollouts.continuous_transformers import ContinuousTransformersEngine, draw_tokens
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import response_log_probs, snapshot
from gmc_core.rollouts.prefix_cache import PrefixCache
from gmc_core.rollouts.tasks import Prompt
from tests.models import random_policy

PROMPTS = [Prompt("1+2=", "3"), Prompt("4+5+6+7=", "2"), Prompt("7+7+1=", "5"), Prompt("9+9=", "8")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    policy = random_policy(0)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return str(folder)


def engine_of(folder, **spec):
    return ContinuousTransformersEngine(EngineSpec("transformers", folder, **spec))


def requests(prompts=PROMPTS, *, first=0, size=4, tokens=10, temperature=1.0):
    return [
        GroupRequest(first + index, prompt, size, tokens, temperature, seed=100 + first + index)
        for index, prompt in enumerate(prompts)
    ]


@torch.no_grad()
def log_probs(policy, group, temperature=1.0):
    """The learner's log-probs of one group, alone and without shared prefixes."""
    return response_log_probs(
        policy.model,
        group.prompt_tokens_L[None],
        torch.ones((1, group.prompt_tokens_L.numel()), dtype=torch.bool),
        group.response_GT,
        torch.zeros(group.size, dtype=torch.long),
        temperature=temperature,
        share_prefix=False,
    )


def check(group, policies, temperature=1.0):
    """Every token against the policy that its version names."""
    assert set(group.version_GT[group.mask_GT].tolist()) <= set(policies)
    for version, policy in policies.items():
        here = group.mask_GT & (group.version_GT == version)
        expected = log_probs(policy, group, temperature)
        torch.testing.assert_close(group.behavior_logp_GT[here], expected[here], atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.02])
def test_log_probs_are_the_learners(folder, temperature):
    groups = generate_groups(engine_of(folder), requests(temperature=temperature))
    policy = random_policy(0)
    for group, prompt in zip(groups, PROMPTS, strict=True):
        assert group.prompt == prompt and group.size == 4
        check(group, {0: policy}, temperature)


@pytest.mark.parametrize("temperature", [1e-3, 0.0])
def test_a_cold_policy_takes_the_likeliest_token(folder, temperature):
    policy = random_policy(0)
    for group in generate_groups(engine_of(folder), requests(temperature=temperature)):
        check(group, {0: policy}, temperature or 1.0)
        tokens = torch.cat([group.prompt_tokens_L, group.response_GT[0][group.mask_GT[0]]])
        likeliest = policy.model(input_ids=tokens[None]).logits[0].argmax(-1)
        L = group.prompt_tokens_L.numel()
        assert torch.equal(likeliest[L - 1 : -1], tokens[L:])


def test_groups_end_by_end_of_sequence_or_at_their_own_limit(folder):
    engine = engine_of(folder)
    some = requests(size=32)
    some[1] = replace(some[1], max_new_tokens=3)
    eos = engine.policy.eos_ids[0]
    groups = generate_groups(engine, some)
    assert engine.tokens_sampled == sum(int(group.mask_GT.sum()) for group in groups)
    finished = torch.cat([group.finished_G for group in groups])
    assert 0 < finished.float().mean() < 1
    for request, group in zip(some, groups, strict=True):
        for row in range(group.size):
            tokens = group.response_GT[row][group.mask_GT[row]]
            assert (tokens[:-1] != eos).all()
            assert bool(tokens[-1] == eos) == bool(group.finished_G[row])
            assert bool(group.finished_G[row]) or len(tokens) == request.max_new_tokens


def test_groups_come_and_go_between_steps(folder):
    """Late arrivals, longer and shorter prompts, an abort: the others are what they would have been alone."""
    engine, more = engine_of(folder), requests(first=4)
    for request in requests()[:2]:
        engine.add(request)
    done = dict(engine.step() + engine.step())
    engine.add(more[1])
    done |= dict(engine.step())
    engine.add(more[2])
    engine.add(more[0])
    assert set(engine.in_flight) | set(done) == {0, 1, 4, 5, 6}
    engine.abort([1, 6, 77])
    widths = []
    for request in requests(first=8):
        done |= dict(engine.step())
        engine.add(request)
    while engine.in_flight:
        done |= dict(engine.step())
        if engine._prefixes is not None:
            widths.append(engine._prefixes.width)
    assert set(done) == {0, 4, 5, 8, 9, 10, 11}
    assert max(widths) <= 8 + 10  # the longest prompt and response, however many have come and gone
    by_ticket = {request.ticket: request for request in (*requests(), *more, *requests(first=8))}
    alone = engine_of(folder)
    for ticket, group in done.items():
        (twin,) = generate_groups(alone, [by_ticket[ticket]])
        assert torch.equal(group.response_GT, twin.response_GT) and torch.equal(group.mask_GT, twin.mask_GT)
        torch.testing.assert_close(group.behavior_logp_GT, twin.behavior_logp_GT, atol=1e-5, rtol=0)
        check(group, {0: random_policy(0)})


def test_an_update_in_the_middle_of_a_generation(folder):
    engine = engine_of(folder)
    policies = {0: random_policy(0), 1: random_policy(1), 5: random_policy(2)}
    for request in requests(size=8, tokens=12):
        engine.add(request)
    done = {}
    for step in range(12):
        if step in (3, 7):
            version = {3: 1, 7: 5}[step]
            engine.update_weights(snapshot(policies[version].model), version)
            engine.add(requests(first=step * 4, size=8)[0])  # joins in the step after an update
        done |= dict(engine.step())
    while engine.in_flight:
        done |= dict(engine.step())
    assert set(done) == {0, 1, 2, 3, 12, 28}
    for group in done.values():
        check(group, policies)
    lengths = done[0].mask_GT.sum(-1)
    longest = done[0].version_GT[lengths.argmax()]
    assert longest[: int(lengths.max())].tolist() == ([0] * 3 + [1] * 4 + [5] * 5)[: int(lengths.max())]
    assert any((group.version_GT == 5).any() for group in done.values())


def test_no_more_rollouts_at_once_than_asked_for(folder):
    engine = engine_of(folder, options={"max_rollouts": 8, "prefill_tokens": 5})
    for request in [*requests(), *requests(first=4, size=20)[:1], *requests(first=5)]:
        engine.add(request)
    most, done = 0, {}
    while engine.in_flight:
        done |= dict(engine.step())
        if 4 not in engine._running:
            most = max(most, len(engine._rows.alive_N))
    assert most <= 8 and set(done) == set(range(9)) and done[4].size == 20
    for group in done.values():
        check(group, {0: random_policy(0)})


def test_a_cache_that_cannot_be_joined_is_computed_again(folder, monkeypatch):
    """What happens with sliding windows and linear attention, forced upon a plain model."""
    plain = generate_groups(engine_of(folder), requests())
    monkeypatch.setattr(PrefixCache, "joinable", property(lambda self: False))
    engine = engine_of(folder, options={"prefill_tokens": 5})
    first, *rest = requests()
    engine.add(first)
    done = dict(engine.step())
    for request in rest:
        engine.add(request)
    while engine.in_flight:
        done |= dict(engine.step())
    for ticket, group in enumerate(plain):
        assert torch.equal(group.response_GT, done[ticket].response_GT)


def test_sampled_frequencies_match_their_log_probs():
    logits = torch.tensor([[0.0, 1.0, -float("inf"), 2.0], [1.0, 1.0, 0.0, 0.0]])
    node, temperature = torch.arange(40_000) % 2, torch.tensor([0.5, 2.0])
    uniform = torch.rand(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    token, logp = draw_tokens(logits, temperature, node, uniform)
    expected = torch.softmax(logits / temperature[:, None], -1)
    for k in range(2):
        seen = torch.bincount(token[node == k], minlength=4) / 20_000
        torch.testing.assert_close(seen, expected[k], atol=0.01, rtol=0)
    torch.testing.assert_close(logp, expected[node, token].log())
    last = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    ends, _ = draw_tokens(torch.tensor([[-float("inf"), 1.0, 1.0, -float("inf")]]), torch.ones(1), node[:2] * 0, last)
    assert ends.tolist() == [1, 2]  # a token without probability is never drawn


def test_the_probe_scores_what_the_learner_scores(folder):
    engine = engine_of(folder)
    (group,) = generate_groups(engine, requests(size=1)[:1])
    scored = engine.score(group.prompt_tokens_L, group.response_GT[0])
    torch.testing.assert_close(scored, log_probs(random_policy(0), group)[0], atol=1e-5, rtol=0)
    engine.update_weights(snapshot(random_policy(1).model), 1)
    scored = engine.score(group.prompt_tokens_L, group.response_GT[0])
    torch.testing.assert_close(scored, log_probs(random_policy(1), group)[0], atol=1e-5, rtol=0)


def test_chat_templates_go_through_the_encoder(folder):
    policy = random_policy(0)
    policy.tokenizer.chat_template = "{% for m in messages %}>{{ m['content'] }}{% endfor %}#"
    engine = engine_of(folder)
    engine._encode = type(engine._encode)(policy.tokenizer, chat=True)
    (group,) = generate_groups(engine, requests()[:1])
    assert policy.tokenizer.decode(group.prompt_tokens_L) == ">1+2=#"
    with pytest.raises(ValueError, match="chat template"):
        engine_of(folder, chat=True)


def test_bad_requests_and_options_are_named(folder):
    engine = engine_of(folder, max_model_len=12)
    assert isinstance(engine, ContinuousEngine)
    assert engine.step() == [] and engine.in_flight == ()
    engine.add(requests(tokens=8)[0])
    with pytest.raises(ValueError, match="ticket 0 is in flight"):
        engine.add(requests(tokens=8)[0])
    with pytest.raises(ValueError, match="ticket 1: 8 prompt tokens and 8 new ones"):
        engine.add(requests(tokens=8)[1])
    with pytest.raises(RuntimeError, match="idle engine"):
        generate_groups(engine, [])
    for spec, message in (
        ({"options": {"gpu_memory": 1}}, "gpu_memory"),
        ({"options": {"max_rollouts": 0}}, "max_rollouts"),
        ({"dtype": "int64"}, "dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            engine_of(folder, **spec)
    with pytest.raises(FileNotFoundError, match="no model"):
        engine_of(folder + "/nothing")
    engine.close()
    assert engine.in_flight == ()


def test_greedy_and_sampled_groups_run_side_by_side(folder):
    mixed = requests(tokens=8)
    mixed[2] = replace(mixed[2], temperature=0.0)
    alone = generate_groups(engine_of(folder), [mixed[2]])[0]
    groups = generate_groups(engine_of(folder), mixed)
    assert torch.equal(groups[2].response_GT, alone.response_GT)
    assert len(groups[2].response_GT.unique(dim=0)) == 1 < len(groups[1].response_GT.unique(dim=0))
    with pytest.raises(ValueError, match="at least 0"):
        requests(temperature=-0.1)
