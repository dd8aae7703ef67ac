"""Every metric of the project by name: what `metrics.jsonl`, README and notebooks print."""

from typing import NamedTuple


class Metric(NamedTuple):
    """A logged quantity: its unit, what it means, and what a bad value looks like."""

    unit: str
    meaning: str
    bad: str


METRICS: dict[str, Metric] = {
    # from group_diagnostics
    "log_mass_mean": Metric(
        "nats",
        "mean over groups of log M, M the mean ratio of a group",
        "far below 0: the current policy has left its rollouts",
    ),
    "log_mass_max": Metric("nats", "largest log M of the update", "several nats: one rollout owns its group"),
    "capped_fraction": Metric(
        "fraction of groups",
        "groups with M > 1 + epsilon, where GMC acts",
        "near 1: the cap sets the step, data too stale",
    ),
    "weight_mean": Metric(
        "1",
        "mean weight over counted rollouts (or tokens)",
        "near 0: little of the data is used; above 1 + epsilon: no cap holds",
    ),
    "weight_max": Metric("1", "largest weight", "near G (1 + epsilon) for GMC: the update follows one rollout"),
    "weight_zero_fraction": Metric(
        "fraction", "counted rollouts (or tokens) of weight exactly 0", "large: the rule discards most of the data"
    ),
    "ess_fraction": Metric(
        "fraction",
        "effective sample size of the raw ratios over G, mean over groups",
        "near 1/G: groups act as one sample",
    ),
    "log_ratio_mean": Metric(
        "nats",
        "mean log-ratio of trajectories, minus a KL estimate",
        "below -1: beyond the trajectory KL that groups can correct",
    ),
    "log_ratio_std": Metric("nats", "standard deviation of trajectory log-ratios", "above 1: heavy-tailed ratios"),
    "log_ratio_min": Metric(
        "nats", "smallest log-ratio of a trajectory", "tens of nats below 0, or -inf: an engine mismatch or a filler"
    ),
    "log_ratio_max": Metric("nats", "largest log-ratio of a trajectory", "tens of nats above 0: an engine mismatch"),
    "excess_group": Metric(
        "1",
        "mean over groups of (M - c)+, the bias bound of GMC",
        "grows with delay; above excess_truncate is impossible",
    ),
    "excess_truncate": Metric(
        "1", "mean of (r - c)+, the bias bound of truncation", "large beside excess_group: capping the group pays"
    ),
    "excess_mask": Metric(
        "1", "mean of r 1{r > c}, the bias bound of masking", "near 1: masking drops most of the probability"
    ),
    "excluded_rollouts": Metric(
        "rollouts",
        "valid rollouts left out: a log-probability not finite or missing, or no token",
        "anything above 0 that you did not cause",
    ),
    "zero_advantage_groups": Metric(
        "groups", "groups whose advantages are all 0", "nearly all groups: nothing is learnt from the step"
    ),
    # from the learner
    "loss": Metric("1", "value of the surrogate loss", "NaN or infinite; otherwise it says nothing about progress"),
    "grad_norm": Metric("1", "gradient norm before clipping", "spikes of 10 times its median, NaN"),
    "grad_norm_clipped": Metric(
        "1", "gradient norm after clipping, as applied", "pinned at the clip for the whole run"
    ),
    "update_length": Metric(
        "parameter units",
        "learning rate x applied gradient norm for SGD, else norm of the parameter change",
        "growing along the run",
    ),
    "skipped_update": Metric("0 or 1", "1 if the gradient was not finite and no step was taken", "1"),
    "learning_rate": Metric("1", "learning rate of the update", "not the schedule you asked for"),
    # from the loop
    "update": Metric("updates", "number of the update, from 1", "gaps or repeats: a resume went wrong"),
    "policy_version": Metric("updates", "version of the policy that was updated", "not update - 1"),
    "behavior_version": Metric(
        "updates", "version of the policy that sampled the rollouts", "constant: engines are not refreshed"
    ),
    "staleness": Metric(
        "updates", "policy_version - behavior_version, mean over rollouts", "above the delay you asked for"
    ),
    "staleness_max": Metric(
        "updates",
        "live loop: largest staleness of a rollout, by the lowest version among its tokens",
        "always at max_staleness: the generators run ahead as far as they may; above it is impossible",
    ),
    "mixed_version_fraction": Metric(
        "fraction",
        "live loop: rollouts whose tokens were sampled under more than one policy version",
        "near 1: rollouts take longer than an update",
    ),
    "queue_length": Metric(
        "groups",
        "live loop with a clock: ready groups left when the batch was taken",
        "always 0: the learner waits for generators; at its capacity: they wait for the learner",
    ),
    "dropped_groups": Metric(
        "groups",
        "live loop with a clock: groups dropped since the previous update",
        "beside prompts_per_update: much is generated for nothing, and what is learnt from is the quick part",
    ),
    "restarts": Metric("workers", "live loop with a clock: rollout workers replaced so far", "growing steadily"),
    "reward_mean": Metric(
        "reward", "mean reward of the sampled rollouts", "falling towards the reward of the warm start or 0"
    ),
    "response_length": Metric("tokens", "mean response length", "collapse to 1 or growth to the limit"),
    "truncated_fraction": Metric("fraction", "responses cut by the length limit", "above a few per cent"),
    "tokens": Metric("tokens", "response tokens that entered the loss", "0"),
    # from evaluation
    "accuracy": Metric("fraction", "share of evaluation prompts answered correctly", "below the warm start"),
    "final_accuracy": Metric("fraction", "accuracy of the last evaluation of a run", "below the warm start"),
    "area_under_curve": Metric("fraction", "mean accuracy over the evaluations of a run", "below the warm start"),
    "initial_accuracy": Metric("fraction", "accuracy before training", "not that of the warm start"),
    "best_accuracy": Metric(
        "fraction",
        "highest accuracy of a run; optimistic, it is a maximum",
        "far above final_accuracy: the run fell back",
    ),
    "collapsed": Metric("0 or 1", "1 if the final accuracy is below half of the best, the start included", "1"),
}
