"""Gradients of a large model, projected once to a few thousand numbers that keep inner products.

CountSketch (Charikar, Chen, Farach-Colton 2002): every coordinate gets a random sign and a bucket, and a bucket holds
the signed sum of its coordinates. <sketch(x), sketch(y)> has expectation <x, y> over the signs, whatever the buckets
are, and variance at most about (|x|^2 |y|^2 + <x, y>^2) / size when no bucket holds much more than its share: a squared
norm is known to sqrt(2 / size). Being linear, sketches can be weighted and averaged like the gradients themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SIZE = 4093  # a prime: a row, a column or a head of a weight matrix is spread over all buckets, whatever its stride
ROWS = 256  # of SIZE coordinates handled at once: a signed copy of them stays in the cache


class GradientSketch:
    """`sketch(gradients)`: the projection of one gradient, given as one tensor per parameter.

    Coordinate i of the flattened parameters goes to bucket i mod `size`; its sign comes from `seed`, one byte a
    parameter is kept. Another `seed` gives an independent projection.
    """

    def __init__(self, parameters: Sequence[Tensor], size: int = SIZE, seed: int = 0) -> None:
        if size < 2:
            raise ValueError(f"GradientSketch got size={size}; expected at least 2, and some thousands for accuracy")
        self.size = size
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        generator = torch.Generator().manual_seed(seed)
        self._signs = [
            torch.randint(0, 2, (parameter.numel(),), generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            for parameter in parameters
        ]
        self._signs = [signs.to(parameter.device) for signs, parameter in zip(self._signs, parameters, strict=True)]

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        """(size,) fp32. ValueError for gradients of other shapes than the parameters."""
        shapes = [tuple(gradient.shape) for gradient in gradients]
        if shapes != self.shapes:
            odd = next((pair for pair in zip(shapes, self.shapes, strict=False) if pair[0] != pair[1]), None)
            raise ValueError(
                f"GradientSketch got {len(shapes)} gradients for {len(self.shapes)} parameters"
                + (f"; the first that differs has shape {odd[0]}, expected {odd[1]}" if odd else "")
            )
        out = torch.zeros(self.size, device=gradients[0].device)
        start = 0  # bucket of the first coordinate of the next parameter
        for gradient, signs in zip(gradients, self._signs, strict=True):
            flat = gradient.flatten()
            total = torch.zeros_like(out)
            whole = flat.numel() // self.size * self.size
            for low in range(0, whole, self.size * ROWS):
                part = slice(low, min(low + self.size * ROWS, whole))
                total += (flat[part].float() * signs[part]).view(-1, self.size).sum(0)
            total[: flat.numel() - whole] += flat[whole:].float() * signs[whole:]
            out += total.roll(start)
            start = (start + flat.numel()) % self.size
        return out
