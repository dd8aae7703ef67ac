"""The fidelity probe: how true to the fresh gradient is what each estimator makes of the same stale rollouts?

At a policy and an older behaviour policy, `probe` samples large groups of stale rollouts once, cuts them into disjoint
groups of the size to be judged, and takes the gradient that every estimator would hand to the optimiser. Beside it
stands the gradient of the same update without delay: fresh rollouts of the current policy, weights 1, the same
advantages, normaliser and group size. So what is called bias is what the delay and its repair do, and nothing else
(mean-centred advantages shrink both by 1 - 1/G, std-normalised ones scale both).

Nothing of a run is touched: the model's weights and `.grad` stay, and the random streams are the probe's own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gmc_core.estimators import group_diagnostics, policy_gradient_loss, trajectory_log_ratio
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import score_groups
from gmc_core.rollouts.tasks import Task
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.training.gradient_moments import gradient_moments
from gmc_core.training.rollout_log_probs import rollout_log_probs
from gmc_core.training.run_config import RunConfig
from gmc_core.training.weighting import Weighting, usable_rollouts

CHANGES = {"estimator", "estimator_options", "rescale_to", "detached"}
DIAGNOSTICS = ("weight_mean", "log_mass_mean", "ess_fraction")


@dataclass(frozen=True)
class ProbePlan:
    """How much a probe samples.

    `prompt_sets` sets of as many prompts as an update has; per prompt `stale_rollouts`, cut into disjoint groups of
    every size of `group_sizes` (at least two groups each), and `fresh_rollouts`, averaged to `fresh_blocks` gradients.
    The prompts are those of `seed`, the same at every probe.
    """

    prompt_sets: int = 4
    stale_rollouts: int = 64
    fresh_rollouts: int = 256
    fresh_blocks: int = 4
    group_sizes: tuple[int, ...] = (16,)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompt_sets < 2:
            raise ValueError(f"ProbePlan.prompt_sets is {self.prompt_sets}; expected at least 2, for standard errors")
        if self.fresh_blocks < 2:
            raise ValueError(f"ProbePlan.fresh_blocks is {self.fresh_blocks}; expected at least 2, to remove the noise")
        for size in self.group_sizes:
            if size < 2 or self.stale_rollouts % size or self.stale_rollouts < 2 * size:
                raise ValueError(
                    f"ProbePlan.group_sizes holds {size}, but {self.stale_rollouts} stale rollouts cannot be cut into "
                    "two or more groups of that size (of at least 2 rollouts); take a divisor"
                )
            if self.fresh_rollouts % (size * self.fresh_blocks):
                raise ValueError(
                    f"ProbePlan.fresh_rollouts is {self.fresh_rollouts}; expected a multiple of group size x "
                    f"fresh_blocks = {size} x {self.fresh_blocks}"
                )


def probe(
    policy: Policy,
    behavior_weights: Mapping[str, Tensor],
    task: Task,
    config: RunConfig,
    estimators: Sequence[str] | Mapping[str, Mapping[str, Any]],
    *,
    plan: ProbePlan | None = None,
    index: int = 0,
) -> list[dict[str, Any]]:
    """One row per group size and estimator: what `gradient_moments` measures, before any gradient clipping.

    Args:
        policy: the current policy; it is not changed. behavior_weights: a snapshot of the policy that samples.
        config: prompts per update, advantage, normaliser, temperature and response limit of the judged update.
        estimators: names of the menu; or labels with the fields of `config` to change, among estimator,
            estimator_options, rescale_to and detached.
        index: another index samples other rollouts (of the same prompts).
    Returns:
        rows with `estimator` (the name or label), `group_size`, the moments with their standard errors, and
        weight_mean, log_mass_mean and ess_fraction of the stale groups.
    Raises: ValueError for a field that is not to be changed, or an estimator unknown to RunConfig.
    """
    plan = plan or ProbePlan()
    weightings = {label: Weighting(config.replace(**change)) for label, change in _changes(estimators).items()}
    fresh = Weighting(config.replace(estimator="uncorrected", estimator_options={}, rescale_to=None, detached=True))
    sampler = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.eos_ids, policy.fingerprint)
    load_snapshot(sampler.model, behavior_weights)
    stale_groups, fresh_groups = [], []
    for s in range(plan.prompt_sets):
        prompts = task.sample_prompts(config.prompts_per_update, stream_generator(plan.seed, "probe prompts", s))
        for engine_policy, count, stream, out in (
            (sampler, plan.stale_rollouts, "probe stale rollouts", stale_groups),
            (policy, plan.fresh_rollouts, "probe fresh rollouts", fresh_groups),
        ):
            generator = stream_generator(plan.seed, stream, index * plan.prompt_sets + s, policy.device)
            groups = TransformersEngine(engine_policy).generate(
                prompts,
                group_size=count,
                max_new_tokens=config.response_limit,
                temperature=config.temperature,
                generator=generator,
            )
            out.append(score_groups(groups, task, policy.tokenizer))

    rows = []
    for size in plan.group_sizes:
        stale_ESKD, diagnostics = _stale_gradients(policy, stale_groups, size, weightings, config)
        fresh_SJD = _fresh_gradients(policy, fresh_groups, size, fresh, config, plan.fresh_blocks)
        for label, gradients_SKD in zip(weightings, stale_ESKD, strict=True):
            moments = gradient_moments(gradients_SKD, fresh_SJD)
            rows.append({"estimator": label, "group_size": size} | moments | diagnostics[label])
    return rows


def step_gradients(
    policy: Policy, batch: Batch, weightings: Sequence[Weighting], temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of one step (of ascent: minus that of the loss) under each weighting; weights and log-probs.

    The weightings share advantages and normaliser. Shapes: (E, D) over the flattened trainable parameters,
    (E, P, G, T) and (P, G, T).
    """
    P, G, T = batch.shape
    parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    valid_PG = usable_rollouts(batch)
    advantage_PG, scale_PG = weightings[0].advantages(batch, valid_PG), weightings[0].scales(batch, valid_PG)
    moves_N = (advantage_PG != 0).any(-1, keepdim=True).expand(P, G).flatten()
    active_N, rest_N = moves_N.nonzero().squeeze(-1), (~moves_N).nonzero().squeeze(-1)
    logp_NT = torch.zeros((P * G, T), dtype=torch.float32, device=batch.response_PGT.device)
    if len(rest_N):
        with torch.no_grad():
            logp_NT[rest_N] = rollout_log_probs(policy.model, batch, rest_N, temperature)
    out = torch.zeros((len(weightings), sum(parameter.numel() for parameter in parameters)), device=logp_NT.device)
    graph = rollout_log_probs(policy.model, batch, active_N, temperature) if len(active_N) else None
    if graph is not None:
        logp_NT[active_N] = graph.detach()
    logp_PGT = logp_NT.view(P, G, T)
    weights = []
    for e, weighting in enumerate(weightings):
        weight_PGT, credit_PG = weighting.weights(batch, logp_PGT, advantage_PG, scale_PG, valid_PG)
        weights.append(weight_PGT)
        if graph is None:
            continue
        loss, _ = policy_gradient_loss(
            graph,
            weight_PGT.flatten(0, 1)[active_N],
            credit_PG.flatten()[active_N],
            batch.mask_PGT.flatten(0, 1)[active_N],
            normalizer=scale_PG.flatten()[active_N],
        )
        gradients = torch.autograd.grad(loss, parameters, retain_graph=e + 1 < len(weightings))
        out[e] = -torch.cat([gradient.flatten() for gradient in gradients])
    return out, torch.stack(weights), logp_PGT


def _changes(estimators: Sequence[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if not isinstance(estimators, Mapping):
        estimators = {name: {"estimator": name} for name in estimators}
    changes = {}
    for label, change in estimators.items():
        if foreign := sorted(set(change) - CHANGES):
            raise ValueError(
                f"estimator {label!r} of a probe changes {', '.join(foreign)}; only {', '.join(sorted(CHANGES))} may "
                "differ from the config, because all share one fresh gradient"
            )
        changes[label] = {"estimator_options": {}, "rescale_to": None, "detached": True, **change}
    return changes


def _cut(groups: Sequence[Group], start: int, size: int, config: RunConfig) -> Batch:
    """Rollouts start .. start + size of every group, as the batch of one step."""
    names = ("response_GT", "mask_GT", "behavior_logp_GT", "version_GT", "finished_G", "reward_G")
    rows = slice(start, start + size)
    parts = [replace(group, **{name: getattr(group, name)[rows] for name in names}) for group in groups]
    return Batch.from_groups(parts, group_size=size, mask_truncated=config.mask_truncated)


def _stale_gradients(
    policy: Policy, sets: Sequence[Sequence[Group]], size: int, weightings: Mapping[str, Weighting], config: RunConfig
) -> tuple[Tensor, dict[str, dict[str, float]]]:
    """(E, S, K, D) gradients of disjoint groups of `size`, and the mean diagnostics of each estimator."""
    gradients, sums, steps = [], {label: dict.fromkeys(DIAGNOSTICS, 0.0) for label in weightings}, 0
    for groups in sets:
        row = []
        for start in range(0, groups[0].size, size):
            batch = _cut(groups, start, size, config)
            gradient_ED, weight_EPGT, logp_PGT = step_gradients(
                policy, batch, list(weightings.values()), config.temperature
            )
            row.append(gradient_ED)
            log_ratio_PG = trajectory_log_ratio(logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT)
            for label, weight_PGT in zip(weightings, weight_EPGT, strict=True):
                found = group_diagnostics(log_ratio_PG, weight_PGT, valid=batch.valid_PG, mask=batch.mask_PGT)
                for name in DIAGNOSTICS:
                    sums[label][name] += found[name].item()
            steps += 1
        gradients.append(torch.stack(row, dim=1))
    means = {label: {name: value / steps for name, value in total.items()} for label, total in sums.items()}
    return torch.stack(gradients, dim=1), means


def _fresh_gradients(
    policy: Policy,
    sets: Sequence[Sequence[Group]],
    size: int,
    weighting: Weighting,
    config: RunConfig,
    blocks: int,
) -> Tensor:
    """(S, blocks, D): means of the gradients of disjoint fresh groups of `size`, in `blocks` independent parts."""
    rows = []
    for groups in sets:
        starts = list(range(0, groups[0].size, size))
        per_block = len(starts) // blocks
        means = []
        for block in range(blocks):
            total = 0
            for start in starts[block * per_block : (block + 1) * per_block]:
                batch = _cut(groups, start, size, config)
                total = total + step_gradients(policy, batch, [weighting], config.temperature)[0][0]
            means.append(total / per_block)
        rows.append(torch.stack(means))
    return torch.stack(rows)
