"""Rollout workers: an engine in a process of its own, or in a Ray actor, and the messages between it and the driver."""
