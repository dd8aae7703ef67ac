"""Hypothesis draws the same examples on every run: a failure here is a failure everywhere."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("deterministic")
