"""The layers of a transformers model, and forwards put in the place of their own for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def repeated_layers(model: Any) -> list[Any]:
    """The layers that the model is a stack of, outermost ones only; empty for a model that transformers did not make.

    They are those that transformers can checkpoint.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if id(layer) not in inner]


@contextmanager
def replaced_forwards(layers: Sequence[Any], wrap: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Inside the block `wrap(layer)` is each layer's forward. Blocks may be nested: the inner one wraps the outer's."""
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = wrap(layer)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
