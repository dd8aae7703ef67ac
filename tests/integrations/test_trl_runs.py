"""TRL set up from a RunConfig is like with like: the same samples are asked for, scored and learnt from alike; and with
GMC and stale rollouts it takes the updates of `gmc_core.train`, one by one."""

import tomllib

import pytest
import torch

from gmc_core import RunConfig, paths
from gmc_core.integrations import trl_runs
from gmc_core.integrations.trl_comparison import SHARED, compare_with_trl
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


@pytest.mark.parametrize("estimator", ["gmc", "uncorrected"])
def test_on_stale_rollouts_trl_takes_the_updates_of_our_loop(tmp_path, estimator):
    """Six updates, rollouts up to two updates old: TRL's weights, metrics and accuracies are ours up to rounding."""
    pytest.importorskip("trl", reason="TRL is an optional extra: pip install trl==1.16.0")
    config = RunConfig(
        estimator=estimator, updates=6, delay=2, evaluation_every=3, evaluation_prompts=32, advantage="center",
        prompts_per_update=4,
    )  # fmt: skip
    found = compare_with_trl(config, tmp_path)
    for name in ("staleness", "staleness_trl"):
        assert [row[name] for row in found.updates] == [0, 1, 2, 2, 2, 2]
    assert found.largest_difference < 2e-6 < 1e-3 < found.largest_change
    assert max(abs(row["log_mass_mean"]) for row in found.updates) > 0.01, "nothing was stale"
    if estimator == "gmc":
        for name in SHARED:
            ours, theirs = ([row[key] for row in found.updates] for key in (name, f"{name}_trl"))
            assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-4), name
    assert [row["update"] for row in found.evaluations] == [0, 3, 6]
    assert all(row["accuracy"] == row["accuracy_trl"] for row in found.evaluations)
    with pytest.raises(ValueError, match="holds this run already"):
        compare_with_trl(config, tmp_path)


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
