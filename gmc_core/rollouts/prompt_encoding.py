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
    and must be said where the template has that switch (Qwen3: False puts an empty block of thought before the answer).
    A prompt's `prefill` stands behind all of that: text that the response continues.
    Raises ValueError for a prompt without tokens, `chat` with a tokenizer that has no template, and `enable_thinking`
    left open, or given, against what the template has.
    """

    tokenizer: Any
    chat: bool = False
    enable_thinking: bool | None = None

    def __post_init__(self) -> None:
        if not self.chat:
            return
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            raise ValueError(
                "chat=True, but this tokenizer has no chat template: use chat=False for a base model, or set "
                "tokenizer.chat_template"
            )
        has_switch = "enable_thinking" in str(template)
        if has_switch and self.enable_thinking is None:
            raise ValueError(
                "this tokenizer's chat template can switch thinking on and off and would decide by itself: set "
                "enable_thinking=True or False"
            )
        if not has_switch and self.enable_thinking is not None:
            raise ValueError(
                f"enable_thinking={self.enable_thinking}, but this tokenizer's chat template has no such switch and "
                "would ignore it; leave enable_thinking=None"
            )

    def __call__(self, prompt: Prompt) -> list[int]:
        text = prompt.text
        if self.chat:
            thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True, **thinking
            )
        ids = self.tokenizer(text + prompt.prefill, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"prompt {prompt.text!r} has no tokens under this model's tokenizer; give it some text")
        return list(ids)
