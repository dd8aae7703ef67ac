"""A policy against its snapshots: laws and gradients against full enumeration and against whole gradients of a step."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch

from gmc_core.rollouts.policy import Policy, response_log_probs, snapshot, weights_fingerprint
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3
from gmc_core.training.fidelity import step_gradients
from gmc_core.training.run_config import RunConfig
from gmc_core.training.snapshot_fidelity import RULES, SnapshotPlan, _Current, _regrouped, snapshot_rows
from gmc_core.training.weighting import Weighting
from tests.models import random_policy

CONFIG = RunConfig(advantage="center", max_new_tokens=1, divide_by_max_length=False)
PLAN = SnapshotPlan(
    prompts=2, stale_rollouts=1024, fresh_rollouts=1024, group_sizes=(2,), epsilons=(0.2,), shuffles=2, sketch_size=1021
)


@dataclass(frozen=True)
class FirstToken:
    """Reward 1 for a digit below 7: responses of one token can be enumerated."""

    name: str = "first_token"
    max_response_tokens: int = 1

    def sample_prompts(self, count, generator):
        return [Prompt(f"{a}+2=", "") for a in range(count)]

    def reward(self, prompt, response, finished):
        return float(response[:1] in set("0123456"))


def small_policy(seed):
    model, tokenizer = tiny_qwen3(seed, hidden_size=32, layers=1, heads=1, kv_heads=1), character_tokenizer()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(4.0)
    return Policy(model, tokenizer, (tokenizer.eos_token_id,), weights_fingerprint(model))


def enumerated(policy, other, prompt):
    """Probabilities (16,) of all answers under both, rewards, and scores (16, D) under `policy`, in fp64."""
    ids = torch.tensor([policy.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]])
    tokens = torch.arange(16).unsqueeze(-1)
    arguments = (ids, torch.ones_like(ids, dtype=torch.bool), tokens, torch.zeros(16, dtype=torch.long))
    logp = response_log_probs(policy.model, *arguments).squeeze(-1)
    parameters = list(policy.model.parameters())
    score = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters, retain_graph=True)]) for one in logp]
    )
    with torch.no_grad():
        behavior = response_log_probs(other.model, *arguments).squeeze(-1).double().exp()
    texts = policy.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    reward = torch.tensor([FirstToken().reward(prompt, text, True) for text in texts], dtype=torch.float64)
    return logp.detach().double().exp(), behavior, reward, score.double()


@pytest.fixture(scope="module")
def measured():
    policy, other = small_policy(0), small_policy(1)
    rows = snapshot_rows(policy, {3: snapshot(other.model)}.items(), FirstToken(), CONFIG, plan=PLAN)
    exact = [enumerated(policy, other, prompt) for prompt in FirstToken().sample_prompts(2, None)]
    return rows, exact


def mean_over_prompts(exact, value):
    return sum(value(*parts) for parts in exact) / len(exact)


def test_kl_and_excesses_are_those_of_full_enumeration(measured):
    rows, exact = measured
    (drift,) = [row for row in rows if row["kind"] == "drift"]
    expected = {
        "kl_forward": lambda p, b, *_: (p * (p / b).log()).sum().item(),
        "kl_backward": lambda p, b, *_: (b * (b / p).log()).sum().item(),
        "log_ratio_variance": lambda p, b, *_: (
            (b * (p / b).log().square()).sum() - (b * (p / b).log()).sum() ** 2
        ).item(),
    }
    for name, value in expected.items():
        assert drift[name] == pytest.approx(mean_over_prompts(exact, value), rel=0.1), name
        assert drift[f"{name}_error"] > 0
    assert drift["delay"] == 3 and drift["length"] == 1.0
    single, pair = (next(row for row in rows if row["kind"] == "law" and row["group_size"] == g) for g in (1, 2))

    def group(p, b, *_):
        mass = (p / b)[torch.cartesian_prod(torch.arange(16), torch.arange(16))].mean(-1)
        return (torch.outer(b, b).flatten() * (mass - 1.2).clamp_min(0)).sum().item()

    def truncate(p, b, *_):
        return (b * (p / b - 1.2).clamp_min(0)).sum().item()

    def mask(p, b, *_):
        return (p * (p / b > 1.2)).sum().item()

    assert single["excess_group"] == pytest.approx(single["excess_truncate"], rel=1e-12)
    assert single["excess_truncate"] == pytest.approx(mean_over_prompts(exact, truncate), rel=0.1)
    assert pair["excess_group"] == pytest.approx(mean_over_prompts(exact, group), rel=0.1)
    assert pair["excess_mask"] == pytest.approx(mean_over_prompts(exact, mask), rel=0.1)


def exact_gradient(exact, rule):
    """Mean over the prompts of E g for groups of two, by all 256 pairs."""
    total = 0
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    for p, b, reward, score in exact:
        law, r = (p if rule == "fresh" else b), (p / b)[pairs]
        weight = {
            "fresh": torch.ones_like(r),
            "uncorrected": torch.ones_like(r),
            "is": r,
            "gmc": r * (1.2 / r.mean(-1, keepdim=True)).clamp(max=1.0),
            "tic_truncate": r.clamp(max=1.2),
            "tic_mask": r * (r <= 1.2),
            "snis": r / r.mean(-1, keepdim=True),
        }[rule]
        advantage = reward[pairs] - reward[pairs].mean(-1, keepdim=True)
        chance = law[pairs].prod(-1)
        total = total + (chance[:, None] * ((weight * advantage).unsqueeze(-1) * score[pairs]).mean(1)).sum(0)
    return total / len(exact)


def test_biases_and_losses_are_those_of_full_enumeration(measured):
    rows, exact = measured
    fresh = exact_gradient(exact, "fresh")
    scale = fresh.square().sum().item()
    assert (exact_gradient(exact, "is") - fresh).norm() < 1e-5 * fresh.norm()  # no bias, which `paired` relies on
    seen = {row["rule"]: row for row in rows if row["kind"] == "gradient"}
    assert set(seen) == set(RULES)
    for rule, row in seen.items():
        gap = exact_gradient(exact, rule) - fresh
        assert row["fresh_norm_squared"] == pytest.approx(scale, rel=0.25)
        bias, lost = gap.square().sum().item() / scale, -(gap @ fresh).item() / scale
        assert row["paired_bias_squared"] / scale == pytest.approx(bias, rel=0.2, abs=0.03), rule
        assert row["paired_lost"] == pytest.approx(lost, rel=0.2, abs=0.03), rule
        assert row["bias_squared"] / scale == pytest.approx(bias, rel=0.4, abs=0.1), rule
    assert seen["is"]["paired_bias_squared"] == 0.0 and seen["tic_mask"]["paired_lost"] > 0.1


@pytest.mark.parametrize("advantage", ["center", "std"])
def test_combined_scores_are_the_gradients_of_a_step(advantage):
    """The same rollouts, several tokens long: backward through a whole group, and the combination of kept scores."""
    policy, config = random_policy(0), CONFIG.replace(advantage=advantage, max_new_tokens=4)
    plan = SnapshotPlan(prompts=2, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,))
    current = _Current(policy, FirstToken(), config, plan, 0)
    sample = current.sample(snapshot(random_policy(1).model), 8, "a test")
    groups = _regrouped(sample.batch, 4)
    assert groups.shape[:2] == (4, 4) and torch.equal(groups.prompt_PL[0], groups.prompt_PL[1])
    for name in ("gmc", "tic_mask", "uncorrected"):
        weighting = Weighting(config.replace(estimator=name))
        found = current._gradients(sample, 4, weighting).flatten(0, 1)
        assert found.norm() > 0
        for g in range(4):
            one = replace(groups, **{key: value[g : g + 1] for key, value in vars(groups).items()})
            whole = step_gradients(policy, one, [weighting], 1.0)[0][0]
            shapes = [parameter.shape for parameter in policy.model.parameters()]
            parts = [part.view(shape) for part, shape in zip(
                whole.split([shape.numel() for shape in shapes]), shapes, strict=True)]  # fmt: skip
            torch.testing.assert_close(found[g], current.sketch(parts), rtol=1e-3, atol=1e-4)


def test_an_age_of_zero_measures_nothing_and_nothing_is_changed():
    policy, task = random_policy(0), FirstToken()
    before = copy.deepcopy(snapshot(policy.model))
    plan = SnapshotPlan(prompts=2, stale_rollouts=16, fresh_rollouts=16, fresh_blocks=2, group_sizes=(4, 8))
    behaviors = {0: snapshot(policy.model), 2: snapshot(random_policy(1).model)}
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first, again, other = (
        snapshot_rows(policy, behaviors.items(), task, CONFIG, plan=plan, index=i) for i in (0, 0, 1)
    )
    assert repr(first) == repr(again) != repr(other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(policy.model).items())
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    for row in first:
        if row["kind"] == "law" and row["delay"] == 0:
            assert row["excess_group"] == row["excess_mask"] == 0.0 and abs(row["log_mass_01"]) < 1e-4
        if row["kind"] == "gradient" and row["delay"] == 0:
            assert abs(row["paired_lost"]) < 1e-4 or math.isnan(row["paired_lost"])
    distance = {row["delay"]: row["distance"] for row in first if row["kind"] == "drift"}
    assert distance[0] == 0.0 and distance[2] > 0.1


def test_rollouts_can_be_sampled_in_parts():
    policy, plan = random_policy(0), SnapshotPlan(
        prompts=3, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,), at_once=8
    )  # fmt: skip
    rows = snapshot_rows(policy, [(1, snapshot(random_policy(1).model))], FirstToken(), CONFIG, plan=plan)
    assert {row["kind"] for row in rows} == {"drift", "length", "law", "gradient"}


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match=r"64 stale rollouts cannot be cut .* take a divisor"):
        SnapshotPlan(stale_rollouts=64)
    with pytest.raises(ValueError, match="multiple of group size x fresh_blocks = 64 x 4"):
        SnapshotPlan(fresh_rollouts=128)
    with pytest.raises(ValueError, match="prompts=1 and fresh_blocks=4; expected at least 2"):
        SnapshotPlan(prompts=1)
    with pytest.raises(ValueError, match="'a' of a SnapshotPlan sets rescale_to; only estimator and estimator_options"):
        SnapshotPlan(rules={"a": {"estimator": "gmc", "rescale_to": "is"}})
    with pytest.raises(ValueError, match="'ppo_clip' of a SnapshotPlan weighs tokens one by one"):
        SnapshotPlan(rules={"ppo_clip": {"estimator": "ppo_clip"}})
