"""How a question becomes a prompt.

A base model gets the text as it is; an instruct model gets the same text as a user message, which the engine's
`PromptEncoder(chat=True)` puts into the chat template. So a template never holds chat markers.
"""

from __future__ import annotations

QUESTION = "{question}"
TEMPLATES: dict[str, str] = {
    # for instruct models, and for base models that have seen such prompts (Qwen2.5, Qwen3)
    "boxed": "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
    # for base models: the text stops where the solution begins
    "solution": "Problem: {question}\nGive the final answer within \\boxed{}.\nSolution:",
    # the format of GSM8K's own solutions
    "hash": "Question: {question}\nSolve it step by step and end with a line of the form #### number.\nAnswer:",
    "question": "{question}",
}


def find_template(template: str) -> str:
    """A template by name, or a text of one's own with `{question}` in it. ValueError for anything else."""
    text = TEMPLATES.get(template, template)
    if not isinstance(text, str) or text.count(QUESTION) != 1:
        raise ValueError(
            f"template {template!r} is neither one of {', '.join(TEMPLATES)} nor a text that holds {QUESTION} once"
        )
    return text


def fill(template: str, question: str) -> str:
    """The prompt. Only `{question}` is replaced: braces of LaTeX stay."""
    return find_template(template).replace(QUESTION, question)
