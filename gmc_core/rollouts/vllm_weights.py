"""New weights inside a vLLM engine: checked before, loaded whole, tied embeddings included.

vLLM fuses, shards and repacks what it loads, so weights go in as a checkpoint does (names and shapes of the
transformers model) and vLLM's reload puts them where its kernels look.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXTENSION = f"{__name__}.WeightExtension"  # the name under which vLLM imports it in its workers


class WeightExtension:
    """Methods that vLLM adds to its worker class (`worker_extension_cls`); called through `collective_rpc`.

    The names start with gmc_ because vLLM refuses an extension that hides a method of the worker.
    """

    def gmc_reload(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Load a whole checkpoint, given as (name, tensor) pairs."""
        self.reload_weights(weights_iterator=iter(weights))
        self.gmc_retie()

    def gmc_reload_file(self, path: str) -> None:
        """The same from a safetensors file, for workers in processes of their own (tensor parallelism)."""
        from safetensors.torch import load_file

        self.gmc_reload(list(load_file(path).items()))

    def gmc_receive(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """One whole update through vLLM's native weight transfer: nothing may be scheduled between its phases."""
        self.start_weight_update()
        for update in updates:
            self.update_weights(dict(update))
        self.finish_weight_update()
        self.gmc_retie()

    def gmc_retie(self) -> None:
        """Let the output layer of a tied model follow the embeddings.

        On CPU vLLM 0.32 computes the logits from a repacked copy of the output layer's weight, and a reload renews
        copies only of layers that appear in the checkpoint. A tied output layer does not, and would go on with the
        weights of the start.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        if not getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            return
        model = self.model_runner.get_model()
        layers = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
        heads = [layer for layer in layers if isinstance(layer, ParallelLMHead)]
        embeddings = [layer for layer in layers if not isinstance(layer, ParallelLMHead)]
        if not heads:  # the model uses the embedding layer itself
            return
        if len(heads) != 1 or len(embeddings) != 1:
            raise RuntimeError(
                f"{type(model).__name__} ties its embeddings and has {len(embeddings)} embedding and {len(heads)} "
                "output layers; weight updates are implemented for one of each"
            )
        head, embedding = heads[0], embeddings[0]
        if head.weight is not embedding.weight:
            head.weight = embedding.weight
        head.quant_method.process_weights_after_loading(head)


def parameter_shapes(model: str, revision: str | None = None) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the transformers model (tied ones once), without loading its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        meta = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model, revision=revision))
    return {name: tuple(parameter.shape) for name, parameter in meta.named_parameters()}


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """ValueError unless these are all the weights of that model: vLLM would load a part of them without a word."""
    if odd := sorted(weights.keys() ^ shapes.keys()):
        here = "missing" if odd[0] in shapes else "unknown to the model"
        raise ValueError(
            f"these weights belong to another model: {len(odd)} names differ, the first is {odd[0]!r} ({here}). Give "
            "the named parameters of the model that the engine was built from (policy.snapshot)"
        )
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(
                f"these weights belong to another model: {name} has shape {tuple(weights[name].shape)}, "
                f"expected {shape}"
            )


def reload_by_file(engine: Any, weights: Mapping[str, Tensor]) -> None:
    """Reload in workers that are processes of their own: vLLM's channel to them is not made for tensors."""
    from safetensors.torch import save_file

    from gmc_core.rollouts.workers.weights import shared_folder

    with tempfile.TemporaryDirectory(dir=shared_folder()) as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, path)
        engine.collective_rpc("gmc_reload_file", args=(str(path),))
