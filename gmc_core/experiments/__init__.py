"""Experiments as data, and the processes that run them: the floor above records and figures' data."""
