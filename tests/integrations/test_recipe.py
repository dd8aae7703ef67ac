"""The recipe of docs/your_own_loop.md does what the reference does."""

import re

import torch

from gmc_core import gmc_weights, paths, policy_gradient_loss, trajectory_log_ratio

N, T, G = 12, 4, 3


def test_the_two_passes_of_the_recipe_give_the_gradient_of_the_whole_step():
    text = (paths.ROOT / "docs/your_own_loop.md").read_text(encoding="utf-8")
    recipe = re.search(r"## The recipe.*?```python\n(.*?)```", text, flags=re.DOTALL)[1]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((N, T), generator=generator, requires_grad=True)
    mask = torch.arange(T) < torch.randint(1, T + 1, (N, 1), generator=generator)
    sampler = (torch.nn.functional.logsigmoid(logits) + 0.5 * torch.randn((N, T), generator=generator)).detach()
    sampler[3, 0] = torch.nan  # missing
    group, advantage = torch.randperm(N, generator=generator) // G, torch.randn(N, generator=generator)
    given = {
        "log_probs": lambda rows: torch.nn.functional.logsigmoid(logits[rows]),
        "sampler_logp_NT": sampler,
        "mask_NT": mask,
        "group_N": group,
        "advantage_N": advantage,
        "N": N,
        "micro_batch": 5,
    }
    exec(recipe, given)

    whole = torch.nn.functional.logsigmoid(logits)
    weight = gmc_weights(trajectory_log_ratio(whole.detach(), sampler, mask), 0.2, group_index=group)
    assert weight[3] == 0 and weight.std() > 0.1
    loss, _ = policy_gradient_loss(whole, weight, advantage, mask, normalizer=torch.full((N,), 1 / N))
    (expected,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(logits.grad, expected)
