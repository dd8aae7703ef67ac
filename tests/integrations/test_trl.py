"""Real runs of TRL on the small Qwen3: the weights that its loss uses, and the steps that it takes with them."""

import math

import pytest
import torch

from gmc_core import gmc_weights, paths, policy_gradient_loss
from gmc_core.rollouts.policy import load_policy, snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import make_task

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
from gmc_core.integrations import trl as integration  # noqa: E402  (needs TRL)
from gmc_core.integrations.trl import BEHAVIOR, WEIGHT, GMCTrainer  # noqa: E402
from gmc_core.integrations.trl_rollouts import DelayedRollouts  # noqa: E402

P, G, T = 4, 4, 14
PARTS, WINDOW, ITERATIONS = 4, 2, 2  # micro-batches of a generation batch, of an optimiser step; passes over the batch
ROWS = P * G // PARTS
RATE = 0.05
TASK = make_task("running_sums")


def build(kind, folder, *, rows=P, rollout_func=None, estimator=None, **changes):
    from datasets import Dataset

    policy = load_policy(paths.TINY_QWEN3)
    settings = {
        "output_dir": str(folder),
        "seed": 1,
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": WINDOW,
        "steps_per_generation": PARTS,
        "num_generations": G,
        "num_iterations": ITERATIONS,
        "max_steps": ITERATIONS * PARTS // WINDOW,
        "loss_type": "dr_grpo",
        "beta": 0.0,
        "max_completion_length": T,
        "optim": "sgd",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **changes,
    }
    prompts = TASK.sample_prompts(rows, stream_generator(0, "prompts", 0))
    return kind(
        model=policy.model,
        reward_funcs=lambda completions, **_: [float(sum(map(ord, text)) % 7) for text in completions],  # never flat
        args=trl.GRPOConfig(**settings),
        train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in prompts]),
        processing_class=policy.tokenizer,
        rollout_func=rollout_func,
        **(estimator or {}),
    )


def watched(trainer, monkeypatch):
    """Train; for every micro-batch what TRL's own loss was given, the whole batch, and the weights at that time."""
    seen, loss = [], trl.GRPOTrainer.compute_loss

    def compute_loss(self, model, inputs, *arguments, **options):
        parts = [dict(part) for part in self._buffered_inputs]
        seen.append((self.state.global_step, inputs, parts, snapshot(self.model)))
        return loss(self, model, inputs, *arguments, **options)

    monkeypatch.setattr(trl.GRPOTrainer, "compute_loss", compute_loss)
    trainer.train()
    return seen, snapshot(trainer.model)


def log_probs(weights, part):
    """(N, T) log-probs of a batch by a plain forward pass of a model with these weights; the model too."""
    model = load_policy(paths.TINY_QWEN3).model
    model.load_state_dict(weights, strict=False)
    ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
    mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
    width = part["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    return logits.log_softmax(-1).gather(-1, part["completion_ids"].unsqueeze(-1)).squeeze(-1), model


def merged(parts):
    keys = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", BEHAVIOR)
    return {key: torch.cat([part[key] for part in parts]) for key in keys if key in parts[0]}


def weights_by_hand(weights, behavior_NT, parts):
    """gmc_weights of log-ratios computed again, groups recognised by their prompts."""
    batch = merged(parts)
    with torch.no_grad():
        current_NT, _ = log_probs(weights, batch)
    log_ratio_N = torch.where(batch["completion_mask"].bool(), current_NT - behavior_NT, 0.0).sum(-1)
    _, group_N = torch.unique(batch["prompt_ids"], dim=0, return_inverse=True)
    assert group_N.bincount().tolist() == [G] * P
    return gmc_weights(log_ratio_N, 0.2, group_index=group_N), group_N


def test_trl_s_loss_uses_the_weights_of_the_policy_that_it_updates(tmp_path, monkeypatch):
    trainer = build(GMCTrainer, tmp_path, estimator={"estimator": "gmc", "estimator_options": {"epsilon": 0.2}})
    seen, end = watched(trainer, monkeypatch)
    assert [step for step, *_ in seen] == [0, 0, 1, 1, 2, 2, 3, 3]
    start = seen[0][3]
    with torch.no_grad():
        behavior_NT, _ = log_probs(start, merged(seen[0][2]))
    spread, torn = [], False
    for number, (_, used, parts, weights) in enumerate(seen):
        expected_N, group_N = weights_by_hand(weights, behavior_NT, parts)
        own = slice(number % PARTS * ROWS, (number % PARTS + 1) * ROWS)
        advantage_N = merged(parts)["advantages"][own]
        torch.testing.assert_close(used[WEIGHT], expected_N[own], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(used["advantages"], advantage_N * expected_N[own], rtol=1e-5, atol=1e-5)
        assert "old_per_token_logps" not in used and torch.equal(
            used["completion_ids"], parts[number % PARTS]["completion_ids"]
        )
        torn |= group_N[own].unique().numel() > 1
        spread.append(expected_N.std().item())
    assert torn, "no micro-batch mixes groups: nothing was tried"
    assert spread[0] == pytest.approx(0, abs=1e-5) and spread[-1] > 0.05, "the rollouts never became stale"
    # The step that TRL takes is that of our loss with these weights.
    for step in range(4):
        weights = seen[WINDOW * step][3]
        after = seen[WINDOW * (step + 1)][3] if step < 3 else end
        change = torch.cat([(after[name] - weights[name]).flatten() for name in weights])
        torch.testing.assert_close(
            change, -RATE * gradient(seen[WINDOW * step : WINDOW * (step + 1)]), rtol=1e-3, atol=1e-6
        )
        assert change.norm() > 1e-3
    logged = [entry for entry in trainer.state.log_history if "estimator/weight_mean" in entry]
    assert len(logged) == 4 and logged[0]["estimator/log_ratio_std"] == pytest.approx(0, abs=1e-5)


def gradient(window):
    """Of `policy_gradient_loss` over the micro-batches of an optimiser step, with dr_grpo's constant normaliser."""
    total = 0.0
    for _, used, parts, weights in window:
        (part,) = [part for part in parts if torch.equal(part["completion_ids"], used["completion_ids"])]
        logp_NT, model = log_probs(weights, part)
        scale_N = torch.full((ROWS,), 1 / (ROWS * T * WINDOW))
        mask = part["completion_mask"].bool()
        loss, _ = policy_gradient_loss(logp_NT, part[WEIGHT], part["advantages"], mask, normalizer=scale_N)
        loss.backward()
        named = dict(model.named_parameters())
        total += torch.cat([named[name].grad.flatten() for name in weights])
    return total


def test_without_staleness_the_step_is_that_of_plain_trl(tmp_path):
    fresh = {"num_iterations": 1, "gradient_accumulation_steps": PARTS, "max_steps": 1}
    ends = []
    for kind in (GMCTrainer, trl.GRPOTrainer):
        trainer = build(kind, tmp_path, **fresh)
        start = snapshot(trainer.model)
        trainer.train()
        ends.append(snapshot(trainer.model))
    ours, theirs = ends
    assert any(not torch.equal(start[name], theirs[name]) for name in start)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-7)


def test_a_sampler_s_log_probs_masked_and_missing_rollouts(tmp_path, monkeypatch):
    """Samples of another sampler, one group with a rollout cut short and another with a log-prob that is missing."""
    policy = load_policy(paths.TINY_QWEN3)
    generator = torch.Generator().manual_seed(0)
    words = [n for n in range(len(policy.tokenizer)) if n not in policy.tokenizer.all_special_ids]

    def rollouts(prompts, trainer):
        ids = [policy.tokenizer(prompt)["input_ids"] for prompt in prompts]
        picks = torch.randint(len(words), (len(prompts), 3), generator=generator)
        completions = [[words[n] for n in row] + [policy.eos_ids[0]] for row in picks.tolist()]
        completions[1] = completions[1][:3]  # no end of sequence: truncated
        logprobs = [
            [None if (n, t) == (6, 1) else -0.3 - n % 3 for t in range(len(row))] for n, row in enumerate(completions)
        ]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs}

    once = {"num_iterations": 1, "gradient_accumulation_steps": PARTS, "max_steps": 1, "learning_rate": 0.1}
    options = {"rollout_func": rollouts, "mask_truncated_completions": True, **once}
    seen, _ = watched(build(GMCTrainer, tmp_path, estimator={"estimator": "snis"}, **options), monkeypatch)
    parts = [used for _, used, *_ in seen]
    batch, weight_N = merged(parts), torch.cat([part[WEIGHT] for part in parts])
    _, group_N = torch.unique(batch["prompt_ids"], dim=0, return_inverse=True)
    masked_N, missing_N = ~batch["completion_mask"].bool().any(-1), batch[BEHAVIOR].isnan().any(-1)
    assert masked_N.sum() == missing_N.sum() == 1
    assert (weight_N[masked_N | missing_N] == 0).all()
    with torch.no_grad():
        current_NT, _ = log_probs(seen[0][3], batch)
    ratio_N = torch.where(batch["completion_mask"].bool(), current_NT - batch[BEHAVIOR], 0.0).sum(-1)
    for group in range(P):
        counted = (group_N == group) & ~masked_N & ~missing_N
        expected = ratio_N[counted].softmax(0) * counted.sum()  # self-normalised: mean 1 over those that count
        torch.testing.assert_close(weight_N[counted], expected, rtol=1e-4, atol=1e-5)


def test_weights_of_the_generation_stay_and_trl_clips_what_happens_after_it(tmp_path, monkeypatch):
    """weights_at="generation": w(pi_old / b) made once; each step's gradient is that of TRL's clipped pi / pi_old."""
    sampler, generator = DelayedRollouts(0), torch.Generator().manual_seed(0)

    def rollouts(prompts, trainer):
        out = sampler(prompts, trainer)
        out["logprobs"] = [  # of a sampler that is another policy than the model
            [value + 0.4 * torch.randn((), generator=generator).item() for value in row] for row in out["logprobs"]
        ]
        return out

    options = {"rollout_func": rollouts, "estimator": {"estimator": "gmc", "weights_at": "generation"}}
    seen, end = watched(build(GMCTrainer, tmp_path, learning_rate=1.0, **options), monkeypatch)
    start, batch = seen[0][3], merged(seen[0][2])
    with torch.no_grad():
        old_NT, _ = log_probs(start, batch)
    log_ratio_N = torch.where(batch["completion_mask"].bool(), old_NT - batch[BEHAVIOR], 0.0).sum(-1)
    _, group_N = torch.unique(batch["prompt_ids"], dim=0, return_inverse=True)
    expected_N = gmc_weights(log_ratio_N, 0.2, group_index=group_N)
    assert expected_N.std() > 0.1, "the sampler is no other policy"
    for number, (_, used, *_) in enumerate(seen):
        own = slice(number % PARTS * ROWS, (number % PARTS + 1) * ROWS)
        torch.testing.assert_close(used["advantages"], batch["advantages"][own] * expected_N[own], rtol=1e-4, atol=1e-5)
        mask = used["completion_mask"].bool()
        torch.testing.assert_close(used["old_per_token_logps"][mask], old_NT[own][mask], rtol=1e-4, atol=1e-4)
    clipped = 0
    for step in range(4):
        window, weights = seen[WINDOW * step : WINDOW * (step + 1)], seen[WINDOW * step][3]
        total = 0.0
        for _, used, *_ in window:
            logp_NT, model = log_probs(weights, used)
            ratio_NT, scaled_N1 = (logp_NT - used["old_per_token_logps"]).exp(), used["advantages"].unsqueeze(1)
            surrogate_NT = torch.minimum(ratio_NT * scaled_N1, ratio_NT.clamp(0.8, 1.2) * scaled_N1)
            clipped += int(((surrogate_NT != ratio_NT * scaled_N1) & used["completion_mask"].bool()).sum())
            (-(surrogate_NT * used["completion_mask"]).sum() / (ROWS * T * WINDOW)).backward()
            named = dict(model.named_parameters())
            total += torch.cat([named[name].grad.flatten() for name in weights])
        after = seen[WINDOW * (step + 1)][3] if step < 3 else end
        change = torch.cat([(after[name] - weights[name]).flatten() for name in weights])
        torch.testing.assert_close(change, -total, rtol=1e-3, atol=1e-5)
    assert clipped > 0, "no token was clipped: nothing was tried"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"loss_type": "cispo"}, {}, "loss_type is 'cispo'"),
        ({"importance_sampling_level": "sequence"}, {}, "importance_sampling_level is 'sequence'"),
        ({"off_policy_mask_threshold": 0.5}, {}, "off_policy_mask_threshold"),
        ({}, {"estimator": "gmd"}, "gmc"),
        ({}, {"weights_at": "sometimes"}, "optimizer_step"),
    ],
)
def test_what_would_not_mean_what_it_says_is_refused(tmp_path, change, options, message):
    with pytest.raises(ValueError, match=message):
        build(GMCTrainer, tmp_path, estimator=options, **change)


def test_the_private_interfaces_are_there():
    trainer = trl.GRPOTrainer
    assert all(callable(getattr(trainer, name)) for name in integration.PRIVATE_METHODS)
    assert not math.isnan(float(integration.READ_IN.rsplit(".", 1)[0]))
