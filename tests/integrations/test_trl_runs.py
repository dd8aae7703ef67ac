"""TRL set up from a RunConfig is like with like: the same samples are asked for, scored and learnt from alike; and with
GMC and stale rollouts it takes the updates of `gmc_core.train`, one by one."""

import tomllib

import pytest
import torch

from gmc_core import RunConfig, paths, train
from gmc_core.integrations import trl_runs
from gmc_core.integrations.trl_rollouts import DelayedRollouts
from gmc_core.rollouts.policy import load_policy, response_log_probs, snapshot
from gmc_core.rollouts.tasks import make_task
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.training.learner import Learner
from tests.spies import spy

UPDATES = 2
CONFIG = RunConfig(updates=UPDATES, evaluation_every=UPDATES, evaluation_prompts=1)
P, G, T = CONFIG.prompts_per_update, CONFIG.group_size, CONFIG.response_limit


def test_the_install_command_names_the_version_of_the_extra():
    extras = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras["optional-dependencies"]["trl"] == [trl_runs.INSTALL.removeprefix("pip install ")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adamw"}, r"RunConfig\.optimizer is 'adamw'.*needs 'sgd'"),
        ({"advantage": "leave_one_out"}, r"RunConfig\.advantage is 'leave_one_out'"),
        ({"rescale_to": "gmc", "estimator": "tic_mask"}, r"RunConfig\.rescale_to"),
    ],
)
def test_a_setting_that_trl_cannot_share_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        trl_runs.trl_trainer(CONFIG.replace(**change), tmp_path)


# --- with TRL ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """TRL's side after `UPDATES` updates, with what passed through it."""
    pytest.importorskip("trl", reason="TRL is an optional extra: pip install trl==1.16.0")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        after = []
        trainer = trl_runs.trl_trainer(
            CONFIG,
            tmp_path_factory.mktemp("trl"),
            after_update=lambda: after.append(snapshot(trainer.model)),
        )
        start = snapshot(trainer.model)
        batches = spy(monkeypatch, trainer, "_generate_and_score_completions", lambda arguments, result: result)
        rewards = spy(
            monkeypatch, trainer, "_calculate_rewards", lambda arguments, result: (*arguments, result.squeeze(-1))
        )
        steps = spy(monkeypatch, torch.optim.SGD, "step", lambda arguments, result: len(arguments))
        passes = spy(monkeypatch, trainer, "_compute_loss", lambda arguments, result: arguments[1])
        widths = []
        trainer.model.register_forward_pre_hook(
            lambda model, arguments, options: widths.append(tuple(options["input_ids"].shape)), with_kwargs=True
        )
        trainer.train()
    return {
        "trainer": trainer,
        "weights": [start, *after],
        "batches": batches,
        "rewards": rewards,
        "steps": steps,
        "passes": passes,
        "forwards": widths,
    }


def test_trl_makes_as_many_completions_and_steps_as_we_do(trained):
    assert len(trained["batches"]) == len(trained["steps"]) == len(trained["passes"]) == UPDATES
    for batch, learnt in zip(trained["batches"], trained["passes"], strict=True):
        assert batch["completion_ids"].shape == (P * G, T) == (128, 14)
        assert learnt["completion_ids"].shape == (P * G, T), "the whole batch is one pass"
        assert "old_per_token_logps" not in batch, "no second scoring of the batch"
        groups = batch["prompt_ids"].view(P, G, -1)
        assert (groups == groups[:, :1]).all(), "16 completions of each prompt"
    for before, after in zip(trained["weights"][:-1], trained["weights"][1:], strict=True):
        change = torch.cat([(after[name] - before[name]).flatten() for name in before])
        length = CONFIG.learning_rate * CONFIG.gradient_clip
        assert 0 < change.norm().item() <= 1.001 * length
        assert change.dtype == torch.float32


def test_both_ask_the_same_prompts_and_the_same_verifier(trained):
    tokenizer, task = load_policy(paths.TINY_QWEN3).tokenizer, make_task(CONFIG.task)
    for update, (inputs, prompts, completions, ids, rewards) in enumerate(trained["rewards"]):
        ours = trl_runs.prompts_of_update(CONFIG, update)
        assert prompts == [prompt.text for prompt in ours for _ in range(G)]
        assert [row["answer"] for row in inputs] == [prompt.answer for prompt in ours for _ in range(G)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert completions == texts
        expected = [
            task.reward(ours[n // G], text, row[-1] == tokenizer.eos_token_id)
            for n, (text, row) in enumerate(zip(texts, ids, strict=True))
        ]
        assert rewards.tolist() == expected
        assert 0 < sum(expected) < P * G


def test_trl_takes_the_update_that_we_take_on_the_same_completions(trained):
    """From the warm start, on TRL's first batch: TRL's change of the weights is ours.

    TRL divides advantages by the sample's standard deviation, we by the population's: a factor sqrt(15/16) on the
    gradient, and none on the step where the gradient is clipped.
    """
    policy = load_policy(paths.TINY_QWEN3)
    before, after = trained["weights"][:2]
    Learner(policy, CONFIG).update(as_batch(policy, trained))
    ours, theirs = (
        torch.cat([(weights[name] - before[name]).flatten() for name in before])
        for weights in (snapshot(policy.model), after)
    )
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.9999
    assert theirs.norm() / ours.norm() == pytest.approx(1.0, abs=0.04)


def test_trl_keeps_nothing_on_that_costs_time(trained):
    trainer = trained["trainer"]
    assert trainer.ref_model is None and not trainer.model.is_gradient_checkpointing
    assert trainer.model.dtype == torch.float32 and not (trainer.args.bf16 or trainer.args.fp16)
    assert trainer.state.log_history[:-1] == [], "nothing logged before the end"
    prompt = 2 * make_task(CONFIG.task).digits  # d+d+d+d+d+d=
    sampling = [(P * G, prompt), *[(P * G, 1)] * (T - 1)]
    assert trained["forwards"] == [*sampling, (P * G, prompt + T)] * UPDATES, "a cache for sampling, one pass to learn"


def test_trl_with_gmc_and_stale_rollouts_takes_the_updates_of_our_loop(tmp_path, monkeypatch):
    """Six updates, the rollouts up to two updates old: after each, TRL's weights are ours up to rounding."""
    pytest.importorskip("trl", reason="TRL is an optional extra: pip install trl==1.16.0")
    from gmc_core.integrations.trl import GMCTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    config = RunConfig(
        updates=6, delay=2, evaluation_every=6, evaluation_prompts=1, advantage="center", prompts_per_update=4
    )
    rollouts, theirs, ours = DelayedRollouts(config.delay), [], []
    trainer = trl_runs.trl_trainer(
        config,
        tmp_path / "trl",
        trainer_class=GMCTrainer,
        estimator="gmc",
        rollout_func=rollouts,
        after_update=lambda: theirs.append((rollouts.staleness, snapshot(trainer.model))),
    )
    trainer.train()
    record = train(config, root=tmp_path, observe=lambda view: ours.append(snapshot(view.policy.model)))
    assert [staleness for staleness, _ in theirs] == [row["staleness"] for row in record.metrics] == [0, 1, 2, 2, 2, 2]
    assert max(abs(row["log_mass_mean"]) for row in record.metrics) > 0.01, "nothing was stale"
    moved = torch.cat([(ours[-1][name] - ours[0][name]).flatten() for name in ours[0]]).norm()
    assert moved > 0.05
    for (_, weights), own in zip(theirs, ours, strict=True):
        for name in own:
            torch.testing.assert_close(weights[name], own[name], rtol=0, atol=2e-6)


def as_batch(policy, trained) -> Batch:
    """TRL's first batch as ours, whole groups with rewards."""
    batch, (*_, rewards) = trained["batches"][0], trained["rewards"][0]
    mask_NT = batch["completion_mask"].bool()
    prompts = trl_runs.prompts_of_update(CONFIG, 0)
    with torch.no_grad():
        logp_NT = response_log_probs(
            policy.model,
            batch["prompt_ids"][::G],
            batch["prompt_mask"][::G].bool(),
            batch["completion_ids"],
            torch.arange(P).repeat_interleave(G),
        )
    groups = []
    for p in range(P):
        rows = slice(p * G, (p + 1) * G)
        groups.append(
            Group(
                prompt=prompts[p],
                prompt_tokens_L=batch["prompt_ids"][p * G],
                response_GT=batch["completion_ids"][rows],
                mask_GT=mask_NT[rows],
                behavior_logp_GT=logp_NT[rows],
                version_GT=torch.zeros_like(batch["completion_ids"][rows]),
                finished_G=(batch["completion_ids"][rows] == policy.eos_ids[0]).any(-1),
                reward_G=rewards[rows],
            )
        )
    return Batch.from_groups(groups, group_size=G)
