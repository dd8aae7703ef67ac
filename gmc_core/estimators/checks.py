"""Checks of arguments: every message says what was given, what is expected and how to put it right."""

import difflib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

# An int is a fine epsilon; run-time type checkers do not take it for a float.
Number = float | int


def check_number(
    name: str,
    value: Number,
    *,
    minimum: Number | None = None,
    below: Number | None = None,
    strictly_above: Number | None = None,
    hint: str = "",
) -> float:
    """`value` as a float inside its range; `math.inf` passes unless a bound forbids it, NaN never does."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}.{_spaced(hint)}")
    number = float(value)
    bounds = []
    if minimum is not None:
        bounds.append((number >= minimum, f">= {minimum:g}"))
    if strictly_above is not None:
        bounds.append((number > strictly_above, f"> {strictly_above:g}"))
    if below is not None:
        bounds.append((number < below, f"< {below:g}"))
    if math.isnan(number) or not all(holds for holds, _ in bounds):
        expected = " and ".join(text for _, text in bounds) or "a number that is not NaN"
        raise ValueError(f"{name} must be {expected}, got {value!r}.{_spaced(hint)}")
    return number


def check_choice(what: str, value: str, known: Iterable[str]) -> str:
    """`value` if it is one of `known`, else a ValueError that lists them and guesses the one that was meant."""
    names = list(known)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a name (a str), got {value!r}. Known: {', '.join(names)}.")
    if value not in names:
        near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {what} {value!r}.{guess} Known: {', '.join(names)}.")
    return value


def check_tensor(name: str, value: Tensor, *, floating: bool = False, hint: str = "") -> Tensor:
    """`value` if it is a tensor (of a floating dtype when asked)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}.{_spaced(hint)}")
    if floating and not value.is_floating_point():
        raise TypeError(f"{name} must hold floating-point numbers, got {value.dtype}; convert it with .float().")
    return value


def check_shape(name: str, tensor: Tensor, expected: Sequence[int], because: str) -> Tensor:
    """`tensor` if its shape is `expected`; `because` names what fixes the expected shape."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}: {because}.")
    return tensor


def as_mask(name: str, mask: Tensor) -> Tensor:
    """A boolean mask from booleans or from the 0/1 numbers that trainers carry.

    Anything else (a weight, an index, a position) is refused: it would be read as "keep" in silence.
    """
    check_tensor(name, mask)
    if mask.dtype == torch.bool:
        return mask
    kept = mask == 1
    if not bool((kept | (mask == 0)).all()):
        raise ValueError(f"{name} must be boolean or hold only 0 and 1, got other values (dtype {mask.dtype}).")
    return kept


def computing_dtype(*tensors: Tensor) -> torch.dtype:
    """float32 whatever the model's dtype; float64 only when a float64 tensor comes in (exact checks, gradcheck)."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def _spaced(hint: str) -> str:
    return f" {hint}" if hint else ""
