"""A Qwen3 small enough for two CPU cores, with a character tokenizer that transformers and vLLM load like any other."""

from __future__ import annotations

from typing import Any

CHARACTERS = "0123456789+=>#"
PAD, EOS = "<pad>", "<eos>"


def character_tokenizer() -> Any:
    """One token per character of `CHARACTERS`, plus padding (0) and end of sequence (1)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def tiny_qwen3(seed: int, *, hidden_size: int = 128, layers: int = 3, heads: int = 4, kv_heads: int = 2) -> Any:
    """A randomly initialised `Qwen3ForCausalLM`: 0.45 M parameters at the defaults, head size 32, tied embeddings."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)  # transformers initialises from the global generator and offers no other
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=2 + len(CHARACTERS),
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0, do_sample=True, temperature=1.0)
    return model.eval()
