"""Training with stale rollouts where the return is exact: enumerable policies, many environments in one tensor program.

Update t uses a group drawn from the policy of update t - min(t, delay): a generator that is always `delay` updates
behind, and that serves the initial policy until it has fallen that far. Plain gradient ascent, no clip, no momentum:

    theta_{t+1} = theta_t + learning_rate * (1/G) sum_i A_i sum_t w_it grad log pi_theta_t(y_it | ...)

Only the groups are sampled. The return J(theta_t) = sum_y pi(y) R(y) and KL(pi_theta_t || behaviour) are sums over all
responses, so a curve has no evaluation noise. Setting: docs/theory.md section 1; everything here is our construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.estimators.advantages import group_advantages
from gmc_core.estimators.enumerable import EnumerablePolicy, ResponseSpace, kl_divergence, response_space
from gmc_core.typing import Float

__all__ = ["Environments", "StaleRun", "delayed_gradient", "random_environments", "train_with_delay"]


_LARGEST_LOGIT = 1e100  # far beyond any sensible policy, and squares of it still fit in fp64
_STEP_WIDE = {"m2po"}  # rules that look across the prompts of an optimiser step


@dataclass(frozen=True)
class Environments:
    """E independent tasks on one response space: `reward` (E, K), fp64, and the initial `logits` (E, C, V)."""

    space: ResponseSpace
    reward: Float[Tensor, "E K"]
    logits: Float[Tensor, "E C V"]

    def __len__(self) -> int:
        return self.reward.shape[0]


def random_environments(
    count: int,
    generator: torch.Generator,
    *,
    reward: str = "verifier",
    vocabulary: int = 3,
    max_length: int = 5,
    correct: float = 0.1,
) -> Environments:
    """Tasks with random rewards, drawn independently for every response and task, and a policy uniform over tokens.

    reward="verifier": 1 with probability `correct`, else 0 (drawn again if no response of a task is correct): many
    responses are as good as the best. reward="graded": uniform on (0, 1), then divided by the task's largest: one
    response is best, and settling early on another costs return. The best return is 1 in both.
    The last token of the vocabulary ends a response; the defaults give K = 63 responses of one to five tokens.
    """
    if count < 1 or not 0 < correct < 1:
        raise ValueError(f"random_environments needs count >= 1 and 0 < correct < 1, got {count} and {correct}")
    space = response_space(vocabulary, max_length)
    logits = torch.zeros(count, space.contexts, space.vocabulary, dtype=torch.float64)
    values = torch.rand(count, space.responses, generator=generator, dtype=torch.float64)
    if reward == "graded":
        return Environments(space, values / values.amax(-1, keepdim=True), logits)
    if reward != "verifier":
        raise ValueError(f"unknown reward {reward!r}; known: verifier, graded")
    while (values.amin(-1) >= correct).any():
        again = torch.rand(count, space.responses, generator=generator, dtype=torch.float64)
        values = torch.where((values.amin(-1) >= correct).unsqueeze(-1), again, values)
    return Environments(space, (values < correct).double(), logits)


@dataclass(frozen=True)
class StaleRun:
    """What `train_with_delay` measured; the leading dims are those of delay x learning rate, then environments.

    updates: (R,) numbers of updates done when recorded (0 first, the last one included); returns: (..., E, R) exact J;
    divergence: (..., E, R) exact KL(current || behaviour) in nats; skipped: (..., E) updates left out because the
    step was too large for fp64; logits: (..., E, C, V) the final policies; path: (..., E, R, C, V) the recorded
    policies, if they were asked for.
    """

    updates: Tensor
    returns: Float[Tensor, "... E R"]
    divergence: Float[Tensor, "... E R"]
    skipped: Tensor
    logits: Float[Tensor, "... E C V"]
    path: Float[Tensor, "... E R C V"] | None = None

    @property
    def final_return(self) -> Float[Tensor, "... E"]:
        return self.returns[..., -1]

    @property
    def mean_return(self) -> Float[Tensor, "... E"]:
        """Average of J over training (area under the curve, trapezoidal, per update)."""
        return torch.trapezoid(self.returns, self.updates.to(self.returns.dtype)) / (self.updates[-1] - self.updates[0])


def train_with_delay(
    estimator: Callable[..., Tensor],
    delay: int | Sequence[int] | Tensor,
    *,
    environments: Environments,
    generator: torch.Generator,
    group_size: int = 16,
    learning_rate: float | Sequence[float] | Tensor = 0.3,
    updates: int = 400,
    advantage: str = "center",
    record_every: int = 10,
    keep_path: bool = False,
) -> StaleRun:
    """Train every environment under every delay and learning rate at once; returns exact returns along the way.

    estimator: anything with the signature of `make_estimator(...)`. `delay` and `learning_rate` may be tensors or
    sequences that broadcast together, shape (...); every combination is a separate training run of each of the E
    environments, with its own groups. An estimator whose `normalizer` is "sequence_mean_token_mean" (GSPO, GEPO) has
    each rollout's gradient divided by its length. M2PO's budget spans an optimiser step: for it the E environments are
    the prompts of one step, for every other rule they are independent. An update that would send a logit beyond 1e100
    is skipped for that run and counted. Computed in fp64; deterministic given the generator's state.
    """
    delay = torch.as_tensor(delay)
    rate = torch.as_tensor(learning_rate, dtype=torch.float64)
    if delay.is_floating_point() or bool((delay < 0).any()):
        raise ValueError(f"delay must be whole numbers of updates >= 0, got {delay.tolist()}")
    if group_size < 2 or updates < 1 or record_every < 1:
        raise ValueError(
            f"group_size must be >= 2 (a group of one has no centred advantage), updates and record_every >= 1; "
            f"got {group_size}, {updates} and {record_every}"
        )
    delay, rate = torch.broadcast_tensors(delay, rate)
    space, runs, tasks = environments.space, delay.numel(), len(environments)
    delay = delay.reshape(runs, 1).expand(runs, tasks)
    rate_step = rate.reshape(runs, 1, 1, 1)
    task = torch.arange(tasks).expand(runs, tasks)
    run = torch.arange(runs).unsqueeze(-1).expand(runs, tasks)

    logits = environments.logits.double().expand(runs, *environments.logits.shape).clone()
    reward = environments.reward.double()
    length_mean = getattr(estimator, "normalizer", None) == "sequence_mean_token_mean"
    slots = int(delay.max()) + 1
    ring = logits.new_zeros(slots, *logits.shape)  # the last `slots` policies; slot = update modulo slots
    skipped = torch.zeros(runs, tasks, dtype=torch.long)
    recorded, returns, divergence, path = [], [], [], []

    for update in range(updates + 1):
        ring[update % slots] = logits
        stale = torch.clamp(delay, max=update)
        current = EnumerablePolicy(space, logits)
        behavior = EnumerablePolicy(space, ring[(update - stale) % slots, run, task])
        if update % record_every == 0 or update == updates:
            recorded.append(update)
            returns.append(current.expected_reward(reward))
            divergence.append(kl_divergence(current, behavior))
            path += [logits] if keep_path else []
        if update == updates:
            break
        index = behavior.sample(group_size, generator)  # (runs, tasks, G)
        lengths = space.lengths[index] if advantage == "length_corrected" else None
        adv = group_advantages(
            reward.expand(runs, *reward.shape).gather(-1, index), normalization=advantage, lengths=lengths
        )
        weight = _weights(
            estimator, current.token_log_probs(index), behavior.token_log_probs(index), space.mask[index], adv
        )
        scale = 1.0 / space.lengths[index] if length_mean else 1.0
        moved = logits + rate_step * current.surrogate_gradient(
            index, (adv * scale / group_size).unsqueeze(-1) * weight
        )
        usable = moved.abs().amax((-1, -2)) < _LARGEST_LOGIT  # False for NaN as well
        skipped += ~usable
        logits = torch.where(usable[..., None, None], moved, logits)

    shape = rate.shape
    return StaleRun(
        updates=torch.tensor(recorded),
        returns=torch.stack(returns, -1).reshape(*shape, tasks, -1),
        divergence=torch.stack(divergence, -1).reshape(*shape, tasks, -1),
        skipped=skipped.reshape(*shape, tasks),
        logits=logits.reshape(*shape, *environments.logits.shape),
        path=torch.stack(path, 2).reshape(*shape, tasks, len(recorded), *logits.shape[-2:]) if keep_path else None,
    )


def _weights(estimator: Callable[..., Tensor], logp: Tensor, logb: Tensor, mask: Tensor, adv: Tensor) -> Tensor:
    """The rule applied to (runs, E, G, T): groups side by side, or run by run for a rule that spans the step."""
    if getattr(estimator, "name", None) in _STEP_WIDE:
        return torch.stack([estimator(*step) for step in zip(logp, logb, mask, adv, strict=True)]).double()
    flat = [values.flatten(0, 1) for values in (logp, logb, mask, adv)]
    return estimator(*flat).double().unflatten(0, logp.shape[:2])


def delayed_gradient(
    current: EnumerablePolicy, behavior: EnumerablePolicy, reward: Float[Tensor, "... K"]
) -> Float[Tensor, "... C V"]:
    """The gradient that uncorrected learning follows on stale rollouts: E_{y ~ b} (R(y) - J(b)) grad log pi(y).

    Exact, the limit of large groups. Equal to grad J(pi) when b = pi.
    """
    prob = behavior.probabilities()
    centred = prob * (reward - (prob * reward).sum(-1, keepdim=True))
    return current.surrogate_gradient(None, centred.unsqueeze(-1).expand(*centred.shape, current.space.max_length))
