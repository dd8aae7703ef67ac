"""From a prompt to token ids: once, here; everything after it works on ids and nothing is tokenised twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gmc_core.rollouts.tasks import Prompt


@dataclass(frozen=True)
class PromptEncoder:
    """`encoder(prompt) -> list[int]`.

    `chat` puts the prompt into the tokenizer's chat template as one user message with the generation prompt behind it;
    without it the text is taken as it is and no special token is added. `enable_thinking` is passed on to the template
    when it is not None (Qwen3 has it); a base model has no use for either.
    Raises ValueError for a prompt without tokens, or `chat` with a tokenizer that has no template.
    """

    tokenizer: Any
    chat: bool = False
    enable_thinking: bool | None = None

    def __post_init__(self) -> None:
        if self.chat and not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                "chat=True, but this tokenizer has no chat template: use chat=False for a base model, or set "
                "tokenizer.chat_template"
            )

    def __call__(self, prompt: Prompt) -> list[int]:
        if self.chat:
            thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True, **thinking
            )
        else:
            text = prompt.text
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"prompt {prompt.text!r} has no tokens under this model's tokenizer; give it some text")
        return list(ids)
