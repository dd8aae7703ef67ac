"""A Qwen3 without its size: the conventions of the real checkpoints, random weights, one token per byte.

The facts (special tokens and their order, <|endoftext|> as padding, <|im_end|> as the instruct tokenizer's end, the
generation configs, `enable_thinking` in the template, embeddings padded beyond the tokenizer) are those of the
published files; the tokenizer has no merges and the template is our own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THOUGHT = ("<think>", "</think>")  # added tokens that are no special ones: they stay in a decoded text
SPARE = 5  # rows of the embeddings beyond the tokenizer
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking -%}
<think>

</think>

{% endif -%}
{%- endif -%}
"""


def qwen3_tokenizer(*, instruct: bool) -> Any:
    """Bytes as tokens 0 to 255, then the special ones. Base and instruct tokenizers both carry the template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token) for token in THOUGHT])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>" if instruct else "<|endoftext|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_qwen3(folder: Path, *, instruct: bool, seed: int = 0) -> str:
    """Model, tokenizer and generation config in `folder`, as a hub repository holds them."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer = qwen3_tokenizer(instruct=instruct)
    end_of_text, _, im_end = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer) + SPARE, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=256,
            tie_word_embeddings=True, bos_token_id=end_of_text, eos_token_id=im_end if instruct else end_of_text,
            pad_token_id=end_of_text,
        )
    )  # fmt: skip
    with torch.no_grad():  # logits far enough from equal that ratios leave 1
        model.get_output_embeddings().weight.mul_(4.0)
    model.generation_config = GenerationConfig(
        bos_token_id=end_of_text,
        pad_token_id=end_of_text,
        eos_token_id=[im_end, end_of_text] if instruct else end_of_text,
        do_sample=instruct,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
