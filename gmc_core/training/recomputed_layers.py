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


@contextmanager
def recomputed_layers(model: Any) -> Iterator[None]:
    """Forward passes inside the block keep only the inputs of the model's layers; their backward may come later.

    The passes must not use a key/value cache: a layer that runs twice would write to it twice. ValueError for a model
    without layers that transformers can checkpoint.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    layers = [layer for layer in layers if id(layer) not in inner]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layers that can be computed again in the backward pass; "
            "set RunConfig.gradient_checkpointing to False for it"
        )
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        # no random numbers in evaluation mode, so there is no generator state to put back
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
