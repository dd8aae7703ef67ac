import pytest

from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer
from tests.qwen3_like import qwen3_tokenizer

QUESTION = Prompt("What is 3 + 4?", "7", prefill="3 + 4 =")
TURN = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"


def text(encoder, prompt):
    return encoder.tokenizer.decode(encoder(prompt), skip_special_tokens=False)


def test_a_plain_prompt_is_its_text_and_the_beginning_of_the_response():
    encoder = PromptEncoder(qwen3_tokenizer(instruct=False))
    assert text(encoder, QUESTION) == "What is 3 + 4?3 + 4 ="
    assert text(encoder, Prompt("2+2=", "4")) == "2+2="
    assert encoder(Prompt("", "", prefill="a")) == encoder.tokenizer("a")["input_ids"]
    with pytest.raises(ValueError, match="has no tokens"):
        encoder(Prompt("", ""))


@pytest.mark.parametrize(("thinking", "block"), [(True, ""), (False, "<think>\n\n</think>\n\n")])
def test_thinking_off_puts_an_empty_thought_before_the_answer(thinking, block):
    encoder = PromptEncoder(qwen3_tokenizer(instruct=True), chat=True, enable_thinking=thinking)
    assert text(encoder, QUESTION) == TURN + block + "3 + 4 ="
    ids = encoder(QUESTION)
    start = encoder.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert ids.count(start) == 2, "the markers are tokens, not text"


def test_the_switch_of_a_template_must_be_set_and_only_there():
    with pytest.raises(ValueError, match="set enable_thinking=True or False"):
        PromptEncoder(qwen3_tokenizer(instruct=True), chat=True)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}="
    assert text(PromptEncoder(tokenizer, chat=True), Prompt("1+2", "3", prefill="3")) == "1+2=3"
    with pytest.raises(ValueError, match="no such switch"):
        PromptEncoder(tokenizer, chat=True, enable_thinking=False)
    with pytest.raises(ValueError, match="no chat template: use chat=False"):
        PromptEncoder(character_tokenizer(), chat=True)
