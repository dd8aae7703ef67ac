"""The learner, the staleness schedules and the loop around them."""
