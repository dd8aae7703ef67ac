"""The sketch of a gradient: linear, unbiased for inner products, as accurate as it says, also for real gradients."""

import pytest
import torch

from gmc_core.training.gradient_sketch import SIZE, GradientSketch
from tests.models import random_policy

SHAPES = [(7, 5), (64, 24), (300,), (3,)]


def random_gradients(seed, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def test_a_sketch_is_the_signed_sum_of_its_buckets():
    gradients = random_gradients(0)
    sketch = GradientSketch(gradients, size=31, seed=3)
    signs = torch.cat(sketch._signs).double()
    assert set(signs.tolist()) == {-1.0, 1.0} and abs(signs.mean()) < 0.1
    expected = torch.zeros(31, dtype=torch.float64)
    expected.index_add_(0, torch.arange(len(signs)) % 31, signs * flat(gradients))
    torch.testing.assert_close(sketch(gradients).double(), expected, rtol=1e-4, atol=1e-4)


def test_sketches_are_linear():
    first, second = random_gradients(0), random_gradients(1)
    sketch = GradientSketch(first, size=101)
    mixed = sketch([2 * a - 3 * b for a, b in zip(first, second, strict=True)])
    torch.testing.assert_close(mixed, 2 * sketch(first) - 3 * sketch(second), rtol=1e-4, atol=1e-3)


def test_inner_products_are_right_on_average_over_seeds_and_as_accurate_as_promised():
    x, other = random_gradients(0), random_gradients(1)
    y = [0.6 * a + 0.8 * b for a, b in zip(x, other, strict=True)]
    exact = (flat(x) @ flat(y)).item()
    size, seeds = 101, 400
    found = []
    for seed in range(seeds):
        sketch = GradientSketch(x, size=size, seed=seed)
        found.append((sketch(x) @ sketch(y)).item())
    found = torch.tensor(found, dtype=torch.float64)
    scatter = ((flat(x).square().sum() * flat(y).square().sum() + exact**2) / size).sqrt().item()
    assert found.mean().item() == pytest.approx(exact, abs=4 * scatter / seeds**0.5)
    assert 0.8 < found.std().item() / scatter < 1.2


def test_norms_of_a_language_models_gradients_are_known_to_two_percent():
    """Real gradients are far from isotropic: few rows and channels carry most of them."""
    policy = random_policy(0)
    parameters = list(policy.model.parameters())
    tokens = torch.tensor([[3, 12, 5, 13, 8, 14, 8, 15, 8, 1]])
    losses = policy.model(input_ids=tokens).logits.log_softmax(-1)[0, :-1].gather(-1, tokens[0, 1:, None]).squeeze(-1)
    gradients = [torch.autograd.grad(one, parameters, retain_graph=True) for one in losses[[2, 5, 8]]]
    errors = []
    for seed in range(8):
        sketch = GradientSketch(parameters, seed=seed)
        sketches = torch.stack([sketch(each) for each in gradients]).double()
        exact = torch.stack([flat(each) for each in gradients])
        norms = exact.norm(dim=-1)
        errors.append((sketches @ sketches.T - exact @ exact.T) / (norms[:, None] * norms))
    errors = torch.stack(errors)
    assert errors.square().mean().sqrt() < 1.3 * (2 / SIZE) ** 0.5
    assert errors.diagonal(dim1=-2, dim2=-1).abs().max() < 5 * (2 / SIZE) ** 0.5


def test_gradients_of_other_shapes_are_refused():
    gradients = random_gradients(0)
    sketch = GradientSketch(gradients)
    with pytest.raises(ValueError, match=r"the first that differs has shape \(5, 7\), expected \(7, 5\)"):
        sketch([gradients[0].T, *gradients[1:]])
    with pytest.raises(ValueError, match="3 gradients for 4 parameters"):
        sketch(gradients[:3])
    with pytest.raises(ValueError, match="size=1; expected at least 2"):
        GradientSketch(gradients, size=1)
