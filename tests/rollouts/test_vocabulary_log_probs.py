"""Log-probs by blocks of the vocabulary against the plain computation on full logits."""

import pytest
import torch

from gmc_core.rollouts.output_head import output_head
from gmc_core.rollouts.policy import response_log_probs, token_log_probs
from gmc_core.rollouts.vocabulary_log_probs import LogitRule, block_size, vocabulary_log_probs
from tests.models import random_policy

N, D, V = 37, 24, 1009


def case(dtype=torch.float64, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = (0.6 * torch.randn(V, D, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    tokens = torch.randint(0, V, (N,), generator=generator)
    tokens[:4] = torch.tensor([0, V - 1, 499, 500])  # the ends of the vocabulary and of a block
    shift = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    return hidden, weight, tokens, shift


def full(hidden, weight, tokens, bias, rule):
    logits = rule.scale * torch.nn.functional.linear(hidden, weight, bias)
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    return token_log_probs(logits, tokens, rule.temperature)


def with_gradients(logp, *inputs):
    direction = torch.randn(N, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(logp.dtype)
    inputs = [value for value in inputs if value is not None]
    return logp.detach(), torch.autograd.grad((logp * direction).sum(), inputs)


@pytest.mark.parametrize("block", [97, 500, V, 4 * V])
@pytest.mark.parametrize(
    "rule",
    [LogitRule(), LogitRule(temperature=0.6), LogitRule(scale=0.25, softcap=3.0, temperature=1.3)],
    ids=["plain", "temperature", "softcap and scale"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_full_logits(block, rule, bias):
    hidden, weight, tokens, shift = case(bias=bias)
    expected = with_gradients(full(hidden, weight, tokens, shift, rule), hidden, weight, shift)
    found = vocabulary_log_probs(hidden, weight, tokens, bias_V=shift, rule=rule, block=block)
    found = with_gradients(found, hidden, weight, shift)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_fp32_agrees_with_full_logits_and_is_as_exact_as_they_are():
    hidden, weight, tokens, _ = case(torch.float32)
    found = with_gradients(vocabulary_log_probs(hidden, weight, tokens, block=100), hidden, weight)
    plain = with_gradients(full(hidden, weight, tokens, None, LogitRule()), hidden, weight)
    torch.testing.assert_close(found, plain, atol=2e-6, rtol=0)
    exact = with_gradients(full(hidden.double(), weight.double(), tokens, None, LogitRule()), hidden, weight)
    torch.testing.assert_close(found[0].double(), exact[0], atol=4e-6, rtol=0)
    torch.testing.assert_close(found[1], exact[1], atol=4e-6, rtol=0)


def test_bf16_is_summed_in_fp32_and_its_logits_are_not_rounded():
    hidden, weight, tokens, _ = case(torch.bfloat16)
    exact = with_gradients(full(hidden.double(), weight.double(), tokens, None, LogitRule()), hidden, weight)
    logp, gradients = with_gradients(vocabulary_log_probs(hidden, weight, tokens, block=100), hidden, weight)
    assert logp.dtype == torch.float32 and all(gradient.dtype == torch.bfloat16 for gradient in gradients)
    torch.testing.assert_close(logp.double(), exact[0], atol=1e-5, rtol=0)
    rounded = full(hidden, weight, tokens, None, LogitRule()).detach().double()
    assert (rounded - exact[0]).abs().max() > 1e-2, "logits that were rounded to bf16 are far worse"
    torch.testing.assert_close(gradients, exact[1], atol=1e-4, rtol=2**-8)  # one rounding to bf16, at the end


def test_large_logits_neither_overflow_nor_vanish():
    hidden, weight, tokens, _ = case(torch.float32)
    rule = LogitRule(scale=200.0)
    expected = with_gradients(full(hidden.double(), weight.double(), tokens, None, rule), hidden, weight)
    found = with_gradients(vocabulary_log_probs(hidden, weight, tokens, rule=rule, block=64), hidden, weight)
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-2, rtol=1e-3)


def test_frozen_parts_get_no_gradient_and_no_grad_keeps_nothing():
    hidden, weight, tokens, _ = case(torch.float32)
    vocabulary_log_probs(hidden, weight.detach(), tokens, block=100).sum().backward()
    assert hidden.grad is not None and weight.grad is None
    with torch.no_grad():
        assert vocabulary_log_probs(hidden, weight, tokens).grad_fn is None


def test_no_tokens_are_no_fault():
    hidden, weight, tokens, _ = case(torch.float32)
    assert vocabulary_log_probs(hidden[:0], weight, tokens[:0]).shape == (0,)


def test_what_does_not_fit_is_named():
    hidden, weight, tokens, _ = case(torch.float32)
    with pytest.raises(ValueError, match=r"expected \(N, D\), \(V, D\) and \(N,\)"):
        vocabulary_log_probs(hidden, weight[:, 1:], tokens)
    with pytest.raises(ValueError, match=f"the vocabulary has {V} words"):
        vocabulary_log_probs(hidden, weight, torch.full((N,), V))


def test_blocks_keep_to_the_memory_asked_for():
    assert block_size(512) == 64 * 2**20 // (512 * 4)
    assert block_size(10**6) == 1024


# --- inside a model -------------------------------------------------------------------------------------------------


def model_case(model, share_prefix, **options):
    """(log-probs under the mask, gradients) of seven responses to three prompts, one of them padded."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, 16, (3, 4), generator=generator)
    prompt_mask = torch.ones(3, 4, dtype=torch.bool)
    prompt_mask[1, :2] = False
    response = torch.randint(1, 16, (7, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 5, 2, 4, 5]).unsqueeze(1)
    index = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    direction = torch.randn(7, 5, generator=generator) * mask
    model.zero_grad()
    logp = response_log_probs(
        model, prompt, prompt_mask, response, index, temperature=0.7, share_prefix=share_prefix, mask_NT=mask, **options
    )
    (logp * direction).sum().backward()
    return logp.detach()[mask], [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_gives_the_same_with_and_without_its_full_logits(share_prefix, tied):
    model = random_policy().model.double()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(1.5 * model.lm_head.weight.detach().flip(0))
    assert len({id(parameter) for parameter in model.parameters()}) == len(list(model.parameters()))
    expected = model_case(model, share_prefix)
    found = model_case(model, share_prefix, logits_bytes=1)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def small(kind, **options):
    """A random two-layer model of another family, vocabulary 16."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, pad_token_id=0, bos_token_id=None,
        eos_token_id=1, **options,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval().double()


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        ("Gemma2", {"final_logit_softcapping": 0.5}, LogitRule(softcap=0.5)),
        ("Granite", {"logits_scaling": 8.0}, LogitRule(scale=1 / 8)),
        ("Cohere", {"logit_scale": 0.25}, LogitRule(scale=0.25)),
        ("Llama", {"tie_word_embeddings": False}, LogitRule()),
    ],
)
def test_scaled_and_capped_logits_of_other_families(kind, options, rule):
    model = small(kind, **options)
    assert output_head(model).rule == rule
    expected = model_case(model, True)
    torch.testing.assert_close(model_case(model, True, logits_bytes=1), expected, atol=1e-12, rtol=1e-10)


def test_a_model_with_logits_of_its_own_making_is_refused():
    model = random_policy().model
    forward = model.forward

    def doubled(*arguments, **options):
        out = forward(*arguments, **options)
        out.logits = 2 * out.logits
        return out

    model.forward = doubled
    with pytest.raises(ValueError, match=r"not those of its output layer.*logits_mib"):
        output_head(model)
    other = random_policy().model
    other.lm_head = torch.nn.Sequential(other.lm_head)
    with pytest.raises(ValueError, match="output layer Sequential"):
        output_head(other)
