"""Distinct prefixes decoded together, with their key/value cache.

Rows are padded on the left, so that all of them end in the same column and a step appends one token to each; positions
count real tokens only. Prefixes join and leave between steps. A plain cache (full attention) joins by padding and is
trimmed when its longest rows have left; a cache of another kind (sliding window, linear attention) is computed again
from the tokens, which is right for every model and slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence


class PrefixCache:
    """K prefixes of one model: their cache and `logits_KV`, the model's logits for the token after each."""

    def __init__(self, model: Any, sequences: Sequence[Tensor], *, token_budget: int = 16384) -> None:
        """Run the model over `sequences` (1-D token ids, none empty), at most about `token_budget` tokens at a time."""
        self.model = model
        self.token_budget = token_budget
        width = max(sequence.numel() for sequence in sequences)
        rows = max(1, token_budget // width)
        self._prefill(sequences[:rows])
        for start in range(rows, len(sequences), rows):
            if not self.joinable:  # memory then bounds what may be in flight
                self._prefill(sequences)
                return
            part = PrefixCache(model, sequences[start : start + rows], token_budget=token_budget)
            self.join(part)

    @property
    def joinable(self) -> bool:
        """Whether another cache of this model can be appended without running the model again."""
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in getattr(self.cache, "layers", [None]))

    @property
    def width(self) -> int:
        """Columns of the cache, padding included."""
        return self.mask_KS.shape[1]

    @torch.no_grad()
    def _prefill(self, sequences: Sequence[Tensor]) -> None:
        tokens_KS = pad_sequence(list(sequences), batch_first=True, padding_side="left")
        lengths_K = torch.tensor([sequence.numel() for sequence in sequences], device=tokens_KS.device)
        columns_S = torch.arange(tokens_KS.shape[1], device=tokens_KS.device)
        self.mask_KS = (columns_S >= tokens_KS.shape[1] - lengths_K[:, None]).long()
        extra = {}
        if not bool(self.mask_KS.all()):
            positions_KS = (self.mask_KS.cumsum(-1) - 1).clamp_min(0)
            extra = {"attention_mask": self.mask_KS, "position_ids": positions_KS}
        out = self.model(input_ids=tokens_KS, use_cache=True, logits_to_keep=1, **extra)
        self.cache, self.logits_KV = out.past_key_values, out.logits[:, -1]

    @torch.no_grad()
    def extend(self, parent_K: Tensor, token_K: Tensor) -> None:
        """From now on row k is row `parent_K[k]` of before and `token_K[k]` behind it. Rows not named are gone."""
        rows = torch.arange(len(self.mask_KS), device=parent_K.device)
        if not torch.equal(parent_K, rows):
            self.cache.batch_select_indices(parent_K)
            self.mask_KS = self.mask_KS[parent_K]
            self._trim()
        self.mask_KS = torch.cat([self.mask_KS, self.mask_KS.new_ones((len(parent_K), 1))], dim=-1)
        extra = {}
        if not bool(self.mask_KS.all()):
            extra = {"attention_mask": self.mask_KS, "position_ids": self.mask_KS.sum(-1, keepdim=True) - 1}
        out = self.model(input_ids=token_K[:, None], past_key_values=self.cache, use_cache=True, **extra)
        self.logits_KV = out.logits[:, -1]

    def join(self, other: PrefixCache) -> None:
        """Append the rows of `other`; both must be joinable."""
        width = max(self.width, other.width)
        for part in (self, other):
            part._pad_left(width - part.width)
        for layer, more in zip(self.cache.layers, other.cache.layers, strict=True):
            layer.keys = torch.cat([layer.keys, more.keys])
            layer.values = torch.cat([layer.values, more.values])
        self.mask_KS = torch.cat([self.mask_KS, other.mask_KS])
        self.logits_KV = torch.cat([self.logits_KV, other.logits_KV])

    def _pad_left(self, columns: int) -> None:
        if columns:
            for layer in self.cache.layers:
                layer.keys = pad(layer.keys, (0, 0, columns, 0))
                layer.values = pad(layer.values, (0, 0, columns, 0))
            self.mask_KS = pad(self.mask_KS, (columns, 0))

    def _trim(self) -> None:
        """Drop columns that are padding in every row; without it the width would grow for ever."""
        empty = int((~self.mask_KS.bool().any(0)).sum())  # all on the left
        if empty and self.joinable:
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]
            self.mask_KS = self.mask_KS[:, empty:]
