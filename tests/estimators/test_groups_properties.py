"""Properties of the group rules over random shapes, labels and extreme log-ratios, against plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gmc_core import (
    effective_sample_size,
    gmc_weights,
    group_advantages,
    log_group_mass,
    mixture_weights,
    self_normalized_weights,
    tic_weights,
    water_filling_weights,
)
from gmc_core.estimators import is_weights

GROUP_RULES = [gmc_weights, self_normalized_weights, water_filling_weights, mixture_weights]
TRAJECTORY_RULES = [is_weights, tic_weights]

ordinary = st.floats(-6, 6, width=32)
extreme = st.sampled_from([1000.0, -1000.0, 88.0, 90.0, -math.inf, math.nan, math.inf, 0.0])
log_ratios = st.one_of(ordinary, ordinary, ordinary, extreme)
rollouts = st.lists(
    st.tuples(log_ratios, st.integers(-3, 3).map(lambda label: label * 10**6), st.booleans() | st.just(True)),
    max_size=24,
)
epsilons = st.sampled_from([0.0, 0.05, 0.2, 1.0, 7.5])


def _tensors(rows):
    log_ratio = torch.tensor([row[0] for row in rows], dtype=torch.float32)
    label = torch.tensor([row[1] for row in rows], dtype=torch.long)
    valid = torch.tensor([row[2] for row in rows], dtype=torch.bool)
    return log_ratio, label, valid


def _counts(log_ratio, valid):
    return valid and not math.isnan(log_ratio) and log_ratio != math.inf


def _groups(rows):
    """label -> positions of its counted rollouts, in plain Python."""
    groups = {}
    for position, (log_ratio, label, valid) in enumerate(rows):
        if _counts(log_ratio, valid):
            groups.setdefault(label, []).append(position)
    return groups


def _reference_gmc(rows, epsilon):
    """The formula in double precision and Python integers, one rollout at a time."""
    weight = [0.0] * len(rows)
    for members in _groups(rows).values():
        logs = [rows[i][0] for i in members]
        top = max(logs)
        if top == -math.inf:
            continue
        log_mass = top + math.log(sum(math.exp(x - top) for x in logs) / len(logs))
        cut = min(0.0, math.log1p(epsilon) - log_mass)
        for i in members:
            weight[i] = math.exp(min(rows[i][0] + cut, 700.0))
    return torch.tensor(weight, dtype=torch.float64)


@given(rollouts, epsilons)
def test_gmc_equals_plain_python(rows, epsilon):
    log_ratio, label, valid = _tensors(rows)
    weight = gmc_weights(log_ratio, epsilon, group_index=label, valid=valid)
    torch.testing.assert_close(weight.double(), _reference_gmc(rows, epsilon), rtol=2e-4, atol=1e-6)


@given(rollouts, epsilons)
def test_mean_weight_never_exceeds_the_cap(rows, epsilon):
    log_ratio, label, valid = _tensors(rows)
    for rule in (gmc_weights, water_filling_weights):
        weight = rule(log_ratio, epsilon, group_index=label, valid=valid)
        for members in _groups(rows).values():
            assert weight[members].double().mean() <= (1 + epsilon) * (1 + 1e-5)


@given(rollouts)
def test_snis_has_mean_one_or_no_mass(rows):
    log_ratio, label, valid = _tensors(rows)
    weight = self_normalized_weights(log_ratio, group_index=label, valid=valid)
    for members in _groups(rows).values():
        massless = all(rows[i][0] == -math.inf for i in members)
        assert weight[members].double().mean().item() == pytest.approx(0.0 if massless else 1.0, rel=1e-5)


@pytest.mark.parametrize("rule", GROUP_RULES + TRAJECTORY_RULES)
@given(rollouts)
def test_weights_are_finite_and_left_out_rollouts_get_zero(rule, rows):
    log_ratio, label, valid = _tensors(rows)
    options = {"group_index": label} if rule in GROUP_RULES else {}
    weight = rule(log_ratio, valid=valid, **options)
    assert weight.shape == log_ratio.shape and torch.isfinite(weight).all() and (weight >= 0).all()
    for position, (value, _, ok) in enumerate(rows):
        if not _counts(value, ok):
            assert weight[position] == 0


@pytest.mark.parametrize("rule", GROUP_RULES)
@given(rollouts, st.randoms(use_true_random=False))
def test_order_and_names_of_labels_do_not_matter(rule, rows, random):
    log_ratio, label, valid = _tensors(rows)
    weight = rule(log_ratio, group_index=label, valid=valid)
    order = list(range(len(rows)))
    random.shuffle(order)
    renamed = {name: 100 - 7 * rank for rank, name in enumerate(sorted(set(label.tolist())))}
    new_label = torch.tensor([renamed[name] for name in label[order].tolist()], dtype=torch.int32)
    shuffled = rule(log_ratio[order], group_index=new_label, valid=valid[order])
    torch.testing.assert_close(shuffled, weight[order], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rule", GROUP_RULES)
@given(st.integers(1, 4), st.integers(1, 7), st.data())
def test_flat_equals_grouped(rule, prompts, group, data):
    values = data.draw(st.lists(log_ratios, min_size=prompts * group, max_size=prompts * group))
    valid = data.draw(st.lists(st.booleans(), min_size=prompts * group, max_size=prompts * group))
    log_ratio, valid = torch.tensor(values).view(prompts, group), torch.tensor(valid).view(prompts, group)
    label = torch.arange(prompts).repeat_interleave(group)
    flat = rule(log_ratio.flatten(), group_index=label, valid=valid.flatten())
    assert torch.equal(flat.view(prompts, group), rule(log_ratio, valid=valid))
    mass = log_group_mass(log_ratio.flatten(), group_index=label, valid=valid.flatten())
    assert torch.equal(mass, log_group_mass(log_ratio, valid=valid))
    size = effective_sample_size(log_ratio.flatten(), group_index=label, valid=valid.flatten())
    assert torch.equal(size, effective_sample_size(log_ratio, valid=valid))


@pytest.mark.parametrize("rule", GROUP_RULES)
@given(rollouts)
def test_a_group_does_not_see_the_others(rule, rows):
    log_ratio, label, valid = _tensors(rows)
    together = rule(log_ratio, group_index=label, valid=valid)
    for name in set(label.tolist()):
        here = label == name
        alone = rule(log_ratio[here], valid=valid[here])  # one group, in the layout (G,)
        torch.testing.assert_close(together[here], alone, rtol=2e-5, atol=1e-6)


@given(st.lists(ordinary, min_size=1, max_size=12), epsilons)
def test_pathwise_order_of_the_uncovered_mass(values, epsilon):
    """D(w) = mean |r - w|: D(gmc) = D(water_filling) = (M - c)+ <= D(truncate) <= D(mask), docs/theory.md section 3."""
    log_ratio = torch.tensor(values, dtype=torch.float64)
    ratio, cap = log_ratio.exp(), 1 + epsilon

    def uncovered(weight):
        return (ratio - weight).abs().mean().item()

    least = max(ratio.mean().item() - cap, 0.0)
    slack = 1e-9 * (1 + ratio.max().item())
    assert uncovered(gmc_weights(log_ratio, epsilon)) == pytest.approx(least, abs=slack)
    assert uncovered(water_filling_weights(log_ratio, epsilon)) == pytest.approx(least, abs=slack)
    truncate = uncovered(tic_weights(log_ratio, epsilon, variant="truncate"))
    mask = uncovered(tic_weights(log_ratio, epsilon, variant="mask"))
    assert least <= truncate + slack and truncate <= mask + slack


@given(st.lists(ordinary, min_size=1, max_size=12), epsilons)
def test_water_filling_is_a_level_with_mean_exactly_c(values, epsilon):
    log_ratio = torch.tensor(values, dtype=torch.float64)
    ratio, weight = log_ratio.exp(), water_filling_weights(log_ratio, epsilon)
    if ratio.mean() <= 1 + epsilon:
        torch.testing.assert_close(weight, ratio, rtol=1e-9, atol=0)
    else:
        assert weight.mean().item() == pytest.approx(1 + epsilon, rel=1e-9)
        cut = weight < ratio * (1 - 1e-9)
        level = weight[cut].max() if cut.any() else weight.max()
        torch.testing.assert_close(weight, torch.minimum(ratio, level), rtol=1e-8, atol=1e-12)


@given(rollouts)
def test_effective_sample_size_lies_between_one_and_the_group(rows):
    log_ratio, label, valid = _tensors(rows)
    size = effective_sample_size(log_ratio, group_index=label, valid=valid)
    groups = _groups(rows)
    names = sorted(set(label.tolist()))
    assert len(size) == len(names)
    for name, value in zip(names, size.tolist(), strict=True):
        members = groups.get(name, [])
        if all(rows[i][0] == -math.inf for i in members):
            assert value == 0.0
        else:
            assert 1 - 1e-5 <= value <= len(members) * (1 + 1e-5)


@given(rollouts)
def test_advantages_sum_to_zero_in_every_group(rows):
    _, label, valid = _tensors(rows)
    reward = torch.arange(len(rows), dtype=torch.float32).remainder(3)
    for normalization in ("center", "leave_one_out", "std"):
        advantage = group_advantages(reward, normalization=normalization, group_index=label, valid=valid)
        assert (advantage[~valid] == 0).all()
        for name in set(label.tolist()):
            assert advantage[label == name].sum().abs() < 1e-4
