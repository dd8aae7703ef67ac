"""From a task to scored trajectories."""
