"""The fidelity probe against brute force: gradients against learner steps, expectations against full enumeration."""

import copy
from dataclasses import dataclass

import pytest
import torch

from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, response_log_probs, snapshot, weights_fingerprint
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import score_groups
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.fidelity import ProbePlan, probe, step_gradients
from gmc_core.training.learner import Learner
from gmc_core.training.loop import TrainingView, train
from gmc_core.training.run_config import RunConfig
from gmc_core.training.weighting import Weighting
from tests.models import random_policy

VARIANTS = {
    "gmc": {"estimator": "gmc"},
    "tic_mask": {"estimator": "tic_mask"},
    "tic_mask at the mean of gmc": {"estimator": "tic_mask", "rescale_to": "gmc"},
    "gmc, cap not detached": {"estimator": "gmc", "detached": False},
    "ppo_clip": {"estimator": "ppo_clip"},
}


@dataclass(frozen=True)
class FirstToken:
    """Reward 1 for a digit below 7: one token decides, so responses of one token can be enumerated."""

    name: str = "first_token"
    max_response_tokens: int = 1

    def sample_prompts(self, count, generator):
        rows = torch.randint(0, 10, (count, 2), generator=generator).tolist()
        return [Prompt(f"{a}+{b}=", "") for a, b in rows]

    def reward(self, prompt, response, finished):
        return float(response[:1] in set("0123456"))


def small_policy(seed):
    model, tokenizer = tiny_qwen3(seed, hidden_size=32, layers=1, heads=1, kv_heads=1), character_tokenizer()
    with torch.no_grad():  # so that the two differ as policies
        model.get_output_embeddings().weight.mul_(4.0)
    return Policy(model, tokenizer, (tokenizer.eos_token_id,), weights_fingerprint(model))


def stale_batch(max_new_tokens=4, group_size=4):
    groups = TransformersEngine(random_policy(1)).generate(
        [Prompt("1+2=", "3"), Prompt("4+5=", "9")], group_size=group_size, max_new_tokens=max_new_tokens,
        temperature=1.0, generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    return Batch.from_groups(score_groups(groups, FirstToken(), random_policy().tokenizer))


@pytest.mark.parametrize("advantage", ["center", "std"])
def test_gradients_are_those_of_a_learner_step(advantage):
    batch = stale_batch()
    base = RunConfig(
        prompts_per_update=2, group_size=4, max_new_tokens=4, gradient_clip=None, learning_rate=1.0,
        advantage=advantage, normalizer="token_mean",
    )  # fmt: skip
    weightings = [Weighting(base.replace(**change)) for change in VARIANTS.values()]
    gradients, weights, _ = step_gradients(random_policy(0), batch, weightings, 1.0)
    assert not torch.allclose(weights[0], weights[1])
    for gradient, change in zip(gradients, VARIANTS.values(), strict=True):
        policy = random_policy(0)
        before = snapshot(policy.model)
        Learner(policy, base.replace(**change)).update(batch)
        after = snapshot(policy.model)
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
        assert moved.norm() > 0
        torch.testing.assert_close(gradient, moved, rtol=1e-3, atol=1e-6)


def all_pairs(policy, other, prompt, name):
    """Every group of two one-token responses to `prompt`: (probability, gradient of the step), exactly."""
    V = 16
    ids = torch.tensor([policy.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]])
    tokens = torch.arange(V).unsqueeze(-1)
    arguments = (ids, torch.ones_like(ids, dtype=torch.bool), tokens, torch.zeros(V, dtype=torch.long))
    logp = response_log_probs(policy.model, *arguments).squeeze(-1)
    parameters = list(policy.model.parameters())
    score = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters, retain_graph=True)]) for one in logp]
    ).double()
    current = logp.detach().exp().double()
    law = (
        current if name == "fresh" else response_log_probs(other.model, *arguments).detach().exp().double().squeeze(-1)
    )
    texts = policy.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    reward = torch.tensor([FirstToken().reward(prompt, text, True) for text in texts], dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    r = (current / law)[pairs]
    weight = {
        "gmc": r * (1.2 / r.mean(-1, keepdim=True)).clamp(max=1.0),
        "tic_mask": r * (r <= 1.2),
        "is": r,
        "fresh": torch.ones_like(r),
    }[name]
    advantage = reward[pairs] - reward[pairs].mean(-1, keepdim=True)
    return law[pairs].prod(-1), ((weight * advantage).unsqueeze(-1) * score[pairs]).mean(1)


def test_expectations_equal_those_of_full_enumeration():
    """Responses of one token, groups of two: all 16 x 16 groups of both prompts, exactly."""
    policy, other, names = small_policy(0), small_policy(1), ("gmc", "tic_mask", "is")
    config = RunConfig(prompts_per_update=1, group_size=2, max_new_tokens=1, advantage="center")
    plan = ProbePlan(prompt_sets=2, stale_rollouts=256, fresh_rollouts=256, fresh_blocks=4, group_sizes=(2,))
    rows = probe(policy, snapshot(other.model), FirstToken(), config, names, plan=plan)
    prompts = [FirstToken().sample_prompts(1, stream_generator(0, "probe prompts", s))[0] for s in range(2)]
    exact = {name: [all_pairs(policy, other, prompt, name) for prompt in prompts] for name in (*names, "fresh")}
    mean = {name: torch.stack([p @ g for p, g in sets]).mean(0) for name, sets in exact.items()}

    def deviation(name, direction):
        """Standard deviation of <mean of the 2 x 128 sampled gradients, direction>."""
        spread = 0.0
        for p, g in exact[name]:
            along = g @ direction
            spread += (p @ along.square() - (p @ along) ** 2).item() / 128 / 4
        return spread**0.5

    fresh = mean["fresh"]
    for row in rows:
        name = row["estimator"]
        own, gap = mean[name], mean[name] - fresh
        variance = sum((p @ g.square().sum(-1) - (p @ g).square().sum()).item() for p, g in exact[name]) / 2
        rest = variance / 256  # what pairs of noise leave behind
        assert row["variance"] == pytest.approx(variance, rel=0.2), name
        for key, vector, noisy in (
            ("fresh_norm_squared", fresh, ("fresh",)),
            ("norm_squared", own, (name,)),
            ("bias_squared", gap, (name, "fresh")),
        ):
            scatter = 2 * sum(deviation(source, vector) ** 2 for source in noisy) ** 0.5 + rest
            assert row[key] == pytest.approx(vector.square().sum().item(), abs=4 * scatter), (name, key)
        cosine = torch.nn.functional.cosine_similarity(own, fresh, dim=0).item()
        assert row["cosine"] == pytest.approx(cosine, abs=0.1), name
    assert (mean["is"] - fresh).norm() < 1e-6 * fresh.norm()  # importance sampling has no bias, exactly
    by_name = {row["estimator"]: row["bias_squared"] for row in rows}
    assert by_name["tic_mask"] > 5 * abs(by_name["gmc"]) and by_name["tic_mask"] > 5 * abs(by_name["is"])


def test_without_staleness_the_trust_region_methods_agree_and_have_no_bias():
    policy = random_policy(0)
    config = RunConfig(prompts_per_update=4, group_size=4, max_new_tokens=1)
    plan = ProbePlan(prompt_sets=6, stale_rollouts=64, fresh_rollouts=64, group_sizes=(4, 8))
    names = ("gmc", "is", "tic_mask", "snis", "uncorrected")
    rows = probe(policy, snapshot(policy.model), FirstToken(), config, names, plan=plan)
    assert [(row["group_size"], row["estimator"]) for row in rows] == [(g, n) for g in (4, 8) for n in names]
    for row in rows:
        assert row["weight_mean"] == pytest.approx(1.0, abs=1e-4) and row["ess_fraction"] == pytest.approx(
            1.0, abs=1e-4
        )
        assert abs(row["bias_squared"]) < 4 * row["bias_squared_error"]
        assert row["bias_squared"] == pytest.approx(rows[0 if row["group_size"] == 4 else 5]["bias_squared"], rel=1e-2)
        assert row["cosine"] > 0.8


def test_a_probe_changes_nothing_and_repeats_itself():
    policy, task = random_policy(0), FirstToken()
    before = copy.deepcopy(snapshot(policy.model))
    config = RunConfig(prompts_per_update=2, group_size=4, max_new_tokens=1)
    plan = ProbePlan(prompt_sets=2, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,))
    arguments = (policy, snapshot(random_policy(1).model), task, config, VARIANTS)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first, again, other = (repr(probe(*arguments, plan=plan, index=index)) for index in (0, 0, 1))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(policy.model).items())
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_bad_plans_and_foreign_changes_are_refused():
    with pytest.raises(ValueError, match=r"64 stale rollouts cannot be cut .* take a divisor"):
        ProbePlan(group_sizes=(64,))
    with pytest.raises(ValueError, match="multiple of group size x fresh_blocks = 16 x 4"):
        ProbePlan(fresh_rollouts=32)
    with pytest.raises(ValueError, match="at least 2, for standard errors"):
        ProbePlan(prompt_sets=1)
    policy = random_policy(0)
    with pytest.raises(ValueError, match="'gmc' of a probe changes advantage; only detached, estimator"):
        probe(policy, snapshot(policy.model), FirstToken(), RunConfig(), {"gmc": {"advantage": "center"}})


def test_observing_a_run_does_not_change_its_record(tmp_path):
    config = RunConfig(delay=2, updates=4, evaluation_every=2, evaluation_prompts=8, prompts_per_update=2, group_size=4)
    plan = ProbePlan(prompt_sets=2, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,))
    seen: list[tuple[int, int, list]] = []

    def observe(view: TrainingView) -> None:
        if view.update in (1, 3):
            rows = probe(
                view.policy, view.behavior.weights, view.task, view.config, ("gmc", "is"), plan=plan, index=view.update
            )
            seen.append((view.update, view.behavior.version, rows))

    watched = train(config, root=tmp_path / "watched", observe=observe)
    alone = train(config, root=tmp_path / "alone")
    for name in ("metrics.jsonl", "evaluations.jsonl", "policy.safetensors", "summary.json"):
        assert (watched.path / name).read_bytes() == (alone.path / name).read_bytes()
    assert [(update, version) for update, version, _ in seen] == [(1, 0), (3, 1)]
    assert all(row["variance"] > 0 for _, _, rows in seen for row in rows)
