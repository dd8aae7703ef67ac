"""Every model a run can name without a folder of its own: where it lies, its revision, its shape, how it is prompted.

Data, and what follows from it. The revisions are commits of the hub repositories, each found in at least two public
projects that pin the same one; none was downloaded here. A run record stores the commit that was really read. The
shapes are those of the published configs (Qwen3 technical report, arXiv 2505.09388, and the hub's config.json); a test
builds each of them without weights and counts its parameters.

Any other causal LM is named by its hub name or folder; only what is listed here can be checked before it is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE, INSTRUCT = "base", "instruct"
DEFAULT_MODEL = "Qwen/Qwen3-0.6B-Base"
END_OF_TEXT = "<|endoftext|>"  # ends a document in the vocabularies of Qwen and SmolLM


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated MLP; `tied`: input and output embeddings are one matrix."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool = True

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """The shape that a transformers config of this family describes."""
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
            qk_norm=config.model_type == "qwen3",
        )

    @property
    def embedding_parameters(self) -> int:
        """Of one embedding matrix."""
        return self.vocabulary * self.hidden

    @property
    def matrix_parameters(self) -> int:
        """Of the layers' matrices: what a token is multiplied with once in a forward pass, beside the output layer."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def parameters(self) -> int:
        """All of them, tied ones once."""
        norms = self.layers * (2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)) + self.hidden
        return self.matrix_parameters + norms + self.embedding_parameters * (1 if self.tied else 2)


@dataclass(frozen=True)
class ModelSpec:
    """A known model. `kind`: `BASE` continues plain text, `INSTRUCT` expects its chat template.

    `revision`: the pinned commit of its hub repository; None where a package carries the weights. `extra`: what to
    install for such a package (see packaged_models.py).
    """

    name: str
    kind: str
    shape: ModelShape
    licence: str
    revision: str | None = None
    extra: str | None = None


def _qwen3(size: str, base: str, instruct: str, **shape: Any) -> list[ModelSpec]:
    shape = ModelShape(head_dim=128, kv_heads=8, vocabulary=151_936, **shape)
    return [
        ModelSpec(f"Qwen/Qwen3-{size}-Base", BASE, shape, "Apache-2.0", revision=base),
        ModelSpec(f"Qwen/Qwen3-{size}", INSTRUCT, shape, "Apache-2.0", revision=instruct),
    ]


_MODELS = [
    *_qwen3(
        "0.6B",
        base="da87bfb608c14b7cf20ba1ce41287e8de496c0cd",
        instruct="c1899de289a04d12100db370d81485cdf75e47ca",
        layers=28, hidden=1024, intermediate=3072, heads=16, tied=True,
    ),
    *_qwen3(
        "1.7B",
        base="ea980cb0a6c2ae4b936e82123acc929f1cec04c1",
        instruct="70d244cc86ccca08cf5af4e1e306ecf908b1ad5e",
        layers=28, hidden=2048, intermediate=6144, heads=16, tied=True,
    ),
    *_qwen3(
        "4B",
        base="906bfd4b4dc7f14ee4320094d8b41684abff8539",
        instruct="1cfa9a7208912126459214e8b04321603b3df60c",
        layers=36, hidden=2560, intermediate=9728, heads=32, tied=True,
    ),
    *_qwen3(
        "8B",
        base="49e3418fbbbca6ecbdf9608b4d22e5a407081db4",
        instruct="b968826d9c46dd6066d109eabc6255188de91218",
        layers=36, hidden=4096, intermediate=12_288, heads=32, tied=False,
    ),
    ModelSpec(
        "smollm2-135m",  # SmolLM2-135M-Instruct, arXiv 2502.02737
        INSTRUCT,
        ModelShape(
            layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocabulary=49_152, tied=True,
            qk_norm=False,
        ),
        "Apache-2.0",
        extra="smollm2",
    ),
]  # fmt: skip
MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _MODELS}


def kind_of(model: str) -> str | None:
    """`BASE` or `INSTRUCT` by the list above, else by how hub names end; None where neither says it."""
    if model in MODELS:
        return MODELS[model].kind
    words = set(Path(model).name.lower().replace("_", "-").split("-"))
    if "base" in words or "pretrain" in words:
        return BASE
    return INSTRUCT if words & {"instruct", "chat", "it"} else None


def pinned_revision(model: str, revision: str | None) -> str | None:
    """The revision to read: the one asked for, else the pinned one, else None (the hub's head; nothing for a folder).

    ValueError for a revision of a local folder or of packaged weights: they have none.
    """
    spec = MODELS.get(model)
    if revision is not None and (is_folder(model) or (spec is not None and spec.extra is not None)):
        raise ValueError(
            f"revision {revision!r} was given for {model}, which is no hub repository; leave revision=None"
        )
    return spec.revision if revision is None and spec is not None else revision


def is_folder(model: str) -> bool:
    """Whether the name says a local folder, there or not; hub names are `owner/name` or a single word."""
    return Path(model).is_absolute() or model.startswith(".") or Path(model).is_dir()


def check_prompting(model: str, *, chat: bool) -> None:
    """Warn where a model will see prompts of a kind that it was not trained on."""
    kind = kind_of(model)
    if chat and kind == BASE:
        warnings.warn(
            f"{model} is a base model and gets its prompts in a chat template, whose markers it was not trained to "
            "answer: its responses may never end. Set chat=False, or name the instruct model",
            stacklevel=2,
        )
    if not chat and kind == INSTRUCT:
        warnings.warn(
            f"{model} is an instruct model and gets its prompts as plain text, which it will continue rather than "
            "answer. Set chat=True, or name the base model",
            stacklevel=2,
        )


def end_of_sequence_ids(model: str, generation_eos: int | Iterable[int] | None, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response, in the order found: of the generation config, the tokenizer, and `END_OF_TEXT`.

    A base Qwen3 ends at <|endoftext|>, an instruct one at <|im_end|> and at <|endoftext|>. The tokenizer's own id is
    taken as well where the generation config lacks it: some checkpoints name only one of the two, and a response that
    is not ended runs into the length limit. ValueError when there is none.
    """
    if generation_eos is None:
        generation_eos = ()
    found = [int(generation_eos)] if isinstance(generation_eos, int) else [int(each) for each in generation_eos]
    if tokenizer.eos_token_id is not None:
        found.append(int(tokenizer.eos_token_id))
    added: Mapping[str, int] = tokenizer.get_added_vocab()
    if END_OF_TEXT in added:
        found.append(added[END_OF_TEXT])
    if not found:
        raise ValueError(
            f"model {model} names no end-of-sequence id in its generation config or tokenizer; set one there"
        )
    return tuple(dict.fromkeys(found))
