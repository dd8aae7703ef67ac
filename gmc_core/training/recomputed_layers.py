"""Gradient checkpointing: a layer's activations are computed again in the backward pass instead of being kept.

The switch that transformers has for it works in training mode only, in which dropout would make the two passes of an
update differ. This one works in evaluation mode, and lasts for the forward passes of a `with` block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from gmc_core.training.layer_forwards import repeated_layers, replaced_forwards


@contextmanager
def recomputed_layers(model: Any) -> Iterator[None]:
    """Forward passes inside the block keep only the inputs of the model's layers; their backward may come later.

    The passes must not use a key/value cache: a layer that runs twice would write to it twice. ValueError for a model
    without layers that transformers can checkpoint.
    """
    layers = repeated_layers(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layers that can be computed again in the backward pass; "
            "set RunConfig.gradient_checkpointing to False for it"
        )
    # no random numbers in evaluation mode, so there is no generator state to put back
    with replaced_forwards(
        layers, lambda layer: partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    ):
        yield
