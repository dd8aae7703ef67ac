"""Stale rollouts for TRL: which policy samples, how groups are recognised, what is refused."""

from types import SimpleNamespace

import pytest
import torch

from gmc_core import paths
from gmc_core.integrations.trl_rollouts import DelayedRollouts
from gmc_core.rollouts.policy import load_policy, response_log_probs, snapshot
from gmc_core.rollouts.tasks import make_task
from gmc_core.training.staleness import FixedDelay

G, T = 3, 4
PROMPTS = [prompt.text for prompt in make_task("running_sums").sample_prompts(2, torch.Generator().manual_seed(0))]
ROWS = [text for text in PROMPTS for _ in range(G)]


class Trainer:
    """What DelayedRollouts looks at in a trainer."""

    def __init__(self):
        policy = load_policy(paths.TINY_QWEN3)
        self.model, self.processing_class = policy.model.train(), policy.tokenizer
        self.eos_token_ids, self.num_generations, self.num_generations_eval = list(policy.eos_ids), G, 1
        self.accelerator = SimpleNamespace(process_index=0, unwrap_model=lambda model: model)
        self.args = SimpleNamespace(seed=0, temperature=1.0, max_completion_length=T)
        self.state = SimpleNamespace(global_step=0)

    def step(self):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.01)
        self.state.global_step += 1


def test_the_sampler_is_as_old_as_fixed_delay_says_and_its_log_probs_are_those_of_that_policy():
    trainer, rollouts, schedule = Trainer(), DelayedRollouts(2), FixedDelay(2)
    reference = load_policy(paths.TINY_QWEN3).model
    for step in range(5):
        schedule.push(step, snapshot(trainer.model))
        out = rollouts(ROWS, trainer)
        assert rollouts.staleness == step - schedule.behavior.version == min(step, 2)
        reference.load_state_dict(schedule.behavior.weights, strict=False)
        ids, logps = out["completion_ids"][0], torch.tensor(out["logprobs"][0])
        prompt = torch.tensor([out["prompt_ids"][0]])
        with torch.no_grad():
            expected = response_log_probs(
                reference, prompt, torch.ones_like(prompt), torch.tensor([ids]), torch.tensor([0])
            )
        torch.testing.assert_close(logps, expected[0], rtol=1e-4, atol=1e-4)
        trainer.step()
    assert [out["prompt_ids"][n] == out["prompt_ids"][0] for n in range(6)] == [True] * G + [False] * G


def test_batches_every_few_steps_take_the_youngest_policy_that_is_old_enough():
    trainer, rollouts, seen = Trainer(), DelayedRollouts(3), []
    for _ in range(5):
        rollouts(ROWS, trainer)
        seen.append(rollouts.staleness)
        trainer.step(), trainer.step()
    assert seen == [0, 2, 4, 4, 4]


def test_evaluation_samples_the_current_policy_and_leaves_the_schedule_alone():
    trainer, rollouts = Trainer(), DelayedRollouts(10)
    rollouts(ROWS, trainer)
    trainer.step()
    trainer.model.eval()
    ours = rollouts(PROMPTS, trainer)
    fresh = DelayedRollouts(0)(PROMPTS, trainer)
    assert ours == fresh and rollouts.staleness == 0
    trainer.model.train()
    rollouts(ROWS, trainer)
    assert rollouts.staleness == 1


def test_a_group_torn_between_processes_is_sampled_row_by_row():
    trainer = Trainer()
    out = DelayedRollouts(0)(ROWS[1:-1], trainer)
    assert len(out["completion_ids"]) == 4 and out["prompt_ids"][0] == out["prompt_ids"][1] != out["prompt_ids"][2]
    trainer.accelerator.process_index = 1
    assert DelayedRollouts(0)(ROWS[1:-1], trainer)["completion_ids"] != out["completion_ids"]


@pytest.mark.parametrize("delay", [-1, 1.5, True])
def test_a_delay_that_is_none_is_refused(delay):
    with pytest.raises(ValueError, match="DelayedRollouts got delay="):
        DelayedRollouts(delay)


def test_what_cannot_be_sampled_is_refused():
    trainer = Trainer()
    with pytest.raises(ValueError, match="conversational prompts"):
        DelayedRollouts(0)([[{"role": "user", "content": "1+1="}]] * G, trainer)
    trainer.model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="Linear is none"):
        DelayedRollouts(0)(ROWS, trainer)
    trainer.model.weight.ds_id = 0
    with pytest.raises(ValueError, match="ZeRO-3"):
        DelayedRollouts(0)(ROWS, trainer)
