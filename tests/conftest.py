"""Run-time shape checks: the jaxtyping annotations of gmc_core are enforced by beartype while the tests run.

`gmc_core.training` is left out: its configs validate themselves, and those messages are what the tests must see.
"""

import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)  # fastest for models of this size, and sums are then the same in every process

_hook = install_import_hook(
    ["gmc_core.estimators", "gmc_core.theory", "gmc_core.rollouts", "gmc_core.reporting"], "beartype.beartype"
)
