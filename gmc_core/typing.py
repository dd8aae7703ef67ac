"""Shape-annotated tensor types for the public functions.

jaxtyping is optional: `gmc_core` imports with torch alone, and under pytest (where jaxtyping and beartype are there)
the same annotations are checked at run time. Write `Float[Tensor, "P G T"]`, `Int[Tensor, "N"]`, `Bool[Tensor, "..."]`.
"""

from __future__ import annotations

try:
    from jaxtyping import Bool, Float, Int, Shaped
except ImportError:

    class _Unchecked:
        """`Float[Tensor, "P G"]` is plain `Tensor` when jaxtyping is absent."""

        def __class_getitem__(cls, item):
            return item[0]

    Bool = Float = Int = Shaped = _Unchecked

__all__ = ["Bool", "Float", "Int", "Shaped"]
