"""GMC-GRPO companion: estimators for stale rollouts, a learner, staleness schedules and the experiments (arXiv 2610.01896)."""
