"""verl's own loss path with our weights and our loss, against the reference of this project."""

import importlib
import sys
import tomllib
from importlib import metadata

import pytest
import torch

from gmc_core import gmc_weights, make_estimator, paths, policy_gradient_loss
from gmc_core.estimators import METRICS, loss_normalizer
from gmc_core.rollouts.policy import response_log_probs, snapshot
from gmc_core.training.learner import Learner
from gmc_core.training.weighting import Weighting as LearnerWeighting
from gmc_core.training.weighting import usable_rollouts
from tests.models import random_policy
from tests.training.test_learner import CONFIG, stale_batch

pytest.importorskip("verl", reason="verl is not installed: pip install 'verl[verl-core]==0.9.1', or make verl")
from verl.trainer.ppo import core_algos
from verl.utils.tensordict_utils import get_tensordict
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from gmc_core.integrations import verl as integration
from gmc_core.integrations.verl import LOSS, Weighting, check_config, rollout_weights

omegaconf = pytest.importorskip("omegaconf")

N, T, G = 12, 5, 3
# verl's names for the normalisers that are ours too, when every group is whole
MODES = {
    "token-mean": ("token_mean", None),
    "token-sum": (None, None),
    "seq-mean-token-sum": ("sequence_mean_token_sum", None),
    "seq-mean-token-mean": ("sequence_mean_token_mean", None),
    "seq-mean-token-sum-norm": ("sequence_mean_token_sum", 6),
}


def batch(seed=0):
    """12 rollouts of 4 groups in no order: one masked as a whole, one with a log-prob missing, one of padding."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand((N, T), generator=generator)
    rollout = old + 0.5 * torch.randn((N, T), generator=generator)
    mask = (torch.arange(T) < torch.randint(1, T + 1, (N, 1), generator=generator)).long()
    uid = [f"prompt-{n // G}" for n in torch.randperm(N, generator=generator).tolist()]
    advantages = torch.randn((N, 1), generator=generator) * mask
    mask[2] = 0
    rollout[7, 0] = torch.nan
    rollout[0, mask[0].bool().logical_not()] = torch.nan  # outside the mask: of no account
    return old, rollout, mask, advantages, uid


def actor(mode="token-mean", **options):
    return FSDPActorConfig(
        strategy="fsdp", rollout_n=G, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode, clip_ratio=0.2, **options
    )


# --- the weights ------------------------------------------------------------------------------------------------------


def test_weights_are_those_of_whole_groups_whatever_the_order():
    old, rollout, mask, advantages, uid = batch()
    weight, metrics = rollout_weights(make_estimator("gmc", epsilon=0.1), *batch())
    log_ratio = torch.where(mask.bool(), old - rollout, 0.0).sum(-1)
    log_ratio[2] = torch.nan
    group = torch.tensor([int(label.removeprefix("prompt-")) for label in uid])
    expected = gmc_weights(log_ratio, 0.1, group_index=group)
    assert (expected[[2, 7]] == 0).all() and (expected > 0).sum() == N - 2
    torch.testing.assert_close(weight, expected.unsqueeze(-1) * mask)
    assert not weight.requires_grad and weight.dtype == torch.float32

    order = torch.randperm(N, generator=torch.Generator().manual_seed(9))
    moved = [tensor[order] for tensor in (old, rollout, mask, advantages)]
    shuffled, _ = rollout_weights(make_estimator("gmc", epsilon=0.1), *moved, [uid[n] for n in order])
    torch.testing.assert_close(shuffled, weight[order])

    assert {name.removeprefix("estimator/") for name in metrics} <= set(METRICS)
    assert metrics["estimator/excluded_rollouts"] == 1, "the one with a missing log-prob; the masked one was meant"
    assert 0 < metrics["estimator/capped_fraction"] < 1


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "gepo", "uncorrected"])
def test_every_rule_of_the_menu_can_be_used(name):
    old, rollout, mask, advantages, uid = batch()
    weight, _ = rollout_weights(make_estimator(name), old, rollout, mask, advantages, uid)
    advantage = advantages.sum(-1) / mask.sum(-1).clamp_min(1)
    group = torch.tensor([int(label.removeprefix("prompt-")) for label in uid])
    torch.testing.assert_close(weight, make_estimator(name)(old, rollout, mask, advantage, group_index=group))


def test_a_rollout_of_several_rows_has_one_ratio_and_counts_once():
    """An agent's session in three rows weighs as the same tokens in one row do."""
    generator = torch.Generator().manual_seed(1)
    old, rollout = -torch.rand((4, 6), generator=generator), -torch.rand((4, 6), generator=generator)
    mask, advantages, uid = (
        torch.ones((4, 6)),
        torch.randn((4, 1), generator=generator).expand(4, 6),
        ["a", "a", "b", "b"],
    )
    whole, metrics = rollout_weights(make_estimator("gmc"), old, rollout, mask, advantages, uid)

    def cut(tensor):  # rollout 1 in pieces of 2 tokens, scattered; the others padded
        rows = [torch.nn.functional.pad(tensor[1, 2 * k : 2 * k + 2], (0, 4)) for k in range(3)]
        return torch.stack([rows[0], tensor[0], tensor[3], rows[1], tensor[2], rows[2]])

    labels, sessions = ["a", "a", "b", "a", "b", "a"], ["a1", "a0", "b1", "a1", "b0", "a1"]
    arguments = [cut(tensor) for tensor in (old, rollout, mask, advantages)]
    parts, part_metrics = rollout_weights(make_estimator("gmc"), *arguments, labels, sessions)
    torch.testing.assert_close(parts[:, 0], whole[[1, 0, 3, 1, 2, 1], 0])
    assert (parts[0, 2:] == 0).all() and part_metrics == pytest.approx(metrics)
    as_rows, _ = rollout_weights(make_estimator("gmc"), *arguments, labels)
    assert not torch.allclose(as_rows, parts), "without sessions each row is a rollout of its own"
    with pytest.raises(ValueError, match="1 uids and 6 sessions for 6 rows"):
        rollout_weights(make_estimator("gmc"), *arguments, ["a"], sessions)


# --- the loss ---------------------------------------------------------------------------------------------------------


def gradient(logp, mode, weight, advantages, mask, *, rows=None, info=None, name=LOSS, old=None):
    """Of verl's registered loss for rows of the batch, with `global_batch_info` as its workers set it."""
    config = actor(mode)
    config.global_batch_info.update(info or {})
    rows = slice(None) if rows is None else rows
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=(logp if old is None else old).detach()[rows],
        log_prob=logp[rows],
        advantages=advantages[rows],
        response_mask=mask[rows].bool(),
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weight[rows],
    )
    return torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("mode", MODES)
def test_the_registered_loss_has_the_gradient_of_the_reference(mode):
    logits = torch.randn((N, T), generator=torch.Generator().manual_seed(3))
    logp = torch.nn.functional.logsigmoid(logits).requires_grad_()
    _, rollout, mask, _, uid = batch()
    mask[2] = torch.arange(T) < 3  # verl divides by what it was given; so that ours does too, every rollout has tokens
    advantage = torch.randn(N, generator=torch.Generator().manual_seed(5))
    advantages = advantage.unsqueeze(-1) * mask
    weight, _ = rollout_weights(make_estimator("gmc"), logp.detach(), rollout, mask, advantages, uid)
    kind, limit = MODES[mode]
    group = torch.tensor([int(label.removeprefix("prompt-")) for label in uid])
    scale = loss_normalizer(kind, mask, group_index=group, max_length=limit) if kind else torch.ones(N)
    loss, _ = policy_gradient_loss(logp, weight, advantage, mask, normalizer=scale)
    (expected,) = torch.autograd.grad(loss, logp)
    assert expected.abs().max() > 1e-3 and (expected[7] == 0).all()

    info = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": N, "loss_scale_factor": limit}
    given = (logp, mode, weight, advantages, mask)
    torch.testing.assert_close(gradient(*given, info=info), expected)
    # In micro-batches of any rows the parts add up, because verl's workers pass the sums of the whole step.
    parts = torch.randperm(N, generator=torch.Generator().manual_seed(4)).split(5)
    torch.testing.assert_close(sum(gradient(*given, rows=rows, info=info) for rows in parts), expected)
    # At the old policy, verl's clipped loss has the same gradient; away from it, it has its own ratio, ours has not.
    torch.testing.assert_close(gradient(*given, info=info, name="vanilla"), expected)
    elsewhere = logp - 0.5
    torch.testing.assert_close(gradient(*given, info=info, old=elsewhere), expected)
    assert not torch.allclose(gradient(*given, info=info, old=elsewhere, name="vanilla"), expected)


def test_masked_tokens_and_weight_zero_are_inert_whatever_they_hold():
    _, rollout, mask, advantages, uid = batch()
    logp = -torch.rand((N, T), generator=torch.Generator().manual_seed(3))
    weight, _ = rollout_weights(make_estimator("gmc"), logp, rollout, mask, advantages, uid)
    for fill in (torch.nan, -torch.inf):
        spoilt = torch.where((mask == 0) | (weight == 0), fill, logp).requires_grad_()
        found = gradient(spoilt, "token-mean", weight, advantages, mask)
        torch.testing.assert_close(
            found, gradient(logp.clone().requires_grad_(), "token-mean", weight, advantages, mask)
        )
        assert found.isfinite().all() and (found[[2, 7]] == 0).all()


def test_the_loss_without_weights_says_where_they_come_from():
    ones = torch.ones((2, 3))
    with pytest.raises(ValueError, match=r"gmc_surrogate got no rollout_is_weights.*verl_trainers"):
        core_algos.get_policy_loss_fn(LOSS)(ones, ones, ones, ones, "token-mean", actor())


@pytest.mark.parametrize("estimator", ["gmc", "tic_truncate", "ppo_clip"])
def test_a_step_through_verl_s_loss_is_the_step_of_the_learner(estimator):
    """A model, a stale batch, verl's `ppo_loss` with its nested tensors: the change of weights is the Learner's."""
    stale, config = stale_batch(), CONFIG.replace(estimator=estimator, normalizer="sequence_mean_token_mean")
    reference = random_policy(0)
    before = snapshot(reference.model)
    Learner(reference, config).update(stale)
    taken = {name: value - before[name] for name, value in snapshot(reference.model).items()}

    policy, (P, K, width) = random_policy(0), stale.shape
    mask = stale.mask_PGT.flatten(0, 1)
    logp = response_log_probs(
        policy.model,
        stale.prompt_PL,
        stale.prompt_mask_PL,
        stale.response_PGT.flatten(0, 1),
        torch.arange(P).repeat_interleave(K),
        share_prefix=False,
    )
    valid = usable_rollouts(stale)
    assert valid.all()
    advantages = LearnerWeighting(config).advantages(stale, valid).flatten().unsqueeze(-1) * mask
    weight, _ = rollout_weights(
        make_estimator(estimator),
        logp.detach(),
        stale.behavior_logp_PGT.flatten(0, 1),
        mask,
        advantages,
        torch.arange(P).repeat_interleave(K).tolist(),
    )
    lengths = mask.sum(-1).tolist()
    assert torch.equal(mask, torch.arange(width) < mask.sum(-1, keepdim=True))

    def nested(rows_NT):
        rows = [row[:length] for row, length in zip(rows_NT, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    # verl's model output covers prompt and response and is one token ahead: one prompt token, the last is not used
    flat = [torch.cat([row[:length], row.new_zeros(1)]) for row, length in zip(logp, lengths, strict=True)]
    data = get_tensordict(
        {
            "prompts": torch.nested.as_nested_tensor([torch.zeros(1)] * (P * K), layout=torch.jagged),
            "responses": nested(stale.response_PGT.flatten(0, 1)),
            "response_mask": nested(mask.long()),
            "old_log_probs": nested(logp.detach()),
            "advantages": nested(advantages),
            "rollout_is_weights": nested(weight),
        },
        {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": P * K},
    )
    verl_config = actor("seq-mean-token-mean")
    object.__setattr__(verl_config.policy_loss, "loss_mode", LOSS)
    loss, metrics = ppo_loss(verl_config, {"log_probs": torch.nested.as_nested_tensor(flat, layout=torch.jagged)}, data)
    loss.backward()
    assert metrics["actor/ppo_kl"].values == [0.0]
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(-0.5 * parameter.grad, taken[name], rtol=1e-3, atol=2e-6, msg=name)
    assert max(change.abs().max() for change in taken.values()) > 1e-3


# --- what is refused --------------------------------------------------------------------------------------------------


def config(gmc=None, **changes):
    """The parts of a verl config that are looked at; changes by dotted name."""
    whole = omegaconf.OmegaConf.create(
        {
            "trainer": {"gmc": gmc or {}},
            "algorithm": {"rollout_correction": {"bypass_mode": False, "rollout_is": None, "rollout_rs": None}},
            "actor_rollout_ref": {
                "actor": {"policy_loss": {"loss_mode": LOSS}},
                "rollout": {
                    "name": "vllm",
                    "calculate_log_probs": True,
                    "top_p": 1.0,
                    "top_k": -1,
                    "logprobs_mode": "processed_logprobs",
                },
            },
        }
    )
    for name, value in changes.items():
        omegaconf.OmegaConf.update(whole, name, value)
    return whole


ROLLOUT, CORRECTION = "actor_rollout_ref.rollout.", "algorithm.rollout_correction."
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"


@pytest.mark.parametrize(
    ("gmc", "changes", "steps", "message"),
    [
        ({}, {CORRECTION + "bypass_mode": True}, 1, "bypass_mode is True"),
        ({}, {CORRECTION + "rollout_is": "sequence"}, 1, "rollout_is is 'sequence'"),
        ({}, {CORRECTION + "rollout_rs": "token_k1"}, 1, "rollout_rs is 'token_k1'"),
        ({}, {LOSS_MODE: "gspo"}, 1, "loss_mode is 'gspo'.*gmc_surrogate or vanilla"),
        ({"weights_at": "old_policy"}, {}, 4, "'old_policy' goes with vanilla"),
        ({}, {}, 4, "one optimiser step per advantage stage; this config takes 4"),
        ({}, {ROLLOUT + "calculate_log_probs": False}, 1, "calculate_log_probs=True"),
        ({}, {ROLLOUT + "top_p": 0.9}, 1, "top_p=0.9"),
        ({}, {ROLLOUT + "top_k": 50}, 1, "top_k=50"),
        ({}, {ROLLOUT + "logprobs_mode": "raw_logprobs"}, 1, "raw_logprobs"),
        ({"estimator": "gmd"}, {}, 1, "gmc"),
        ({"weights_at": "sometimes"}, {}, 1, "optimizer_step"),
        ({"epsilon": 0.2}, {}, 1, "setting of trainer.gmc 'epsilon'.*estimator_options"),
        ({"estimator_options": {"epsilon": -1}}, {}, 1, "epsilon"),
    ],
)
def test_what_would_not_mean_what_it_says_is_refused(gmc, changes, steps, message):
    given = config(gmc, **changes)
    with pytest.raises(ValueError, match=message):
        check_config(given, Weighting.of(given), steps)


def test_what_does_is_accepted_and_the_section_may_be_left_out():
    given = config({"estimator": "tic_mask", "estimator_options": {"epsilon": 0.5}})
    weighting = Weighting.of(given)
    assert (weighting.estimator, weighting.weights_at) == (make_estimator("tic_mask", epsilon=0.5), "optimizer_step")
    check_config(given, weighting, 1)
    given = config({"weights_at": "old_policy"}, **{LOSS_MODE: "vanilla", ROLLOUT + "name": "sglang"})
    check_config(given, Weighting.of(given), 8)
    given = omegaconf.OmegaConf.create({"trainer": {"nnodes": 1}})
    omegaconf.OmegaConf.set_struct(given, True)  # as hydra leaves it
    assert Weighting.of(given) == Weighting(make_estimator("gmc"))


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.8.0", "0.10.0", "1.0.0"])
def test_a_version_outside_the_range_is_refused_with_the_range(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    for name in ("verl", "verl_trainers", "verl_fully_async"):
        monkeypatch.delitem(sys.modules, "gmc_core.integrations.verl", raising=False)
        monkeypatch.delitem(sys.modules, f"gmc_core.integrations.{name}", raising=False)
        with pytest.raises(ImportError, match=rf"verl {version} .*verl>=0\.9,<0\.10.*pip install"):
            importlib.import_module(f"gmc_core.integrations.{name}")


def test_the_extra_is_the_version_that_the_integration_was_read_in():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["verl"] == [f"verl[verl-core]=={integration.READ_IN}"]
    assert integration.READ_IN in integration.INSTALL
