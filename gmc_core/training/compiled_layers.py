"""torch.compile, layer by layer: the layers of a model are alike, so they share what is compiled for the first.

A whole model would be compiled as many times over as it has layers, which takes minutes. And what makes the attention
mask stays outside: seen by the compiler it cannot tell that a plain causal mask may be left out, and attention with a
mask is not flash attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gmc_core.training.layer_forwards import repeated_layers, replaced_forwards


class CompiledLayers:
    """`with compiled_layers():` forward passes inside the block run the model's layers compiled.

    The passes must not use a key/value cache: it grows, and each layer has its own place in it. ValueError for a model
    without layers that transformers can checkpoint (it knows no other mark of them).
    """

    def __init__(self, model: Any) -> None:
        self._layers = repeated_layers(model)
        if not self._layers:
            raise ValueError(
                f"{type(model).__name__} has no repeated layers that could be compiled; set RunConfig.compile to False "
                "for it"
            )
        # widths change from step to step: one graph for all of them
        self._run = torch.compile(_run_layer, dynamic=True)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with replaced_forwards(self._layers, lambda layer: partial(self._run, layer)):
            yield


def _run_layer(layer: Any, *inputs: Any, **options: Any) -> Any:
    return type(layer).forward(layer, *inputs, **options)
