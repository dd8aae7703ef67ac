"""`import gmc_core` needs torch alone; errors are the same with and without the run-time type checks of the tests."""

import json
import subprocess
import sys

import pytest
import torch

import gmc_core

BLOCKED = [
    "numpy",
    "jaxtyping",
    "beartype",
    "pandas",
    "transformers",
    "matplotlib",
    "seaborn",
    "scipy",
    "ray",
    "vllm",
    "trl",
    "tqdm",
    "yaml",
]

# call -> words of its message; every one is a mistake a user is likely to make
BAD_CALLS = {
    "gmc_weights(torch.zeros(4), -0.1)": "epsilon must be >= 0",
    "gmc_weights(torch.zeros(4), float('nan'))": "epsilon must be >= 0",
    "gmc_weights(torch.zeros(4), group_index=torch.zeros(3, dtype=torch.long))": "one label per rollout",
    "gmc_weights(torch.zeros(2, 4), group_index=torch.zeros(8, dtype=torch.long))": "flat rollouts",
    "gmc_weights(torch.zeros(4), valid=torch.ones(5))": "one entry per rollout",
    "tic_weights(torch.zeros(4), variant='clip')": "Known: mask, truncate",
    "trajectory_log_ratio(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2))": "it must match logp_current",
    "trajectory_log_ratio(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2, 3))": "it must match logp_current",
    "make_estimator('gmx')": "Did you mean 'gmc'",
    "make_estimator('gmc', alpha=1)": "it accepts: epsilon",
    "make_estimator('mixture', alpha=1.0)": "alpha must be >= 0 and < 1",
    "group_advantages(torch.zeros(4), normalization='mean')": "unknown normalization",
    "group_advantages(torch.tensor([0.0, float('inf')]))": "valid=False",
    "loss_normalizer('token', torch.ones(2, 3))": "Did you mean 'token_mean'",
    "policy_gradient_loss(*torch.zeros(4, 2, 3), normalizer='token_mean')": "one advantage per rollout",
    "group_diagnostics(torch.zeros(2, 3), torch.zeros(2, 3, 4))": "pass mask too",
}
# these are caught by the annotations under pytest, by our own check otherwise: either way a TypeError
BAD_TYPES = [
    "gmc_weights(torch.zeros(4, dtype=torch.long))",
    "gmc_weights([0.0, 1.0])",
    "gmc_weights(torch.zeros(4), '0.2')",
    "gmc_weights(torch.zeros(4), group_index=torch.zeros(4))",
    "make_estimator(3)",
    "make_estimator('gmc', epsilon='small')",
    "trajectory_log_ratio(torch.zeros(2, 3), torch.zeros(2, 3).long(), torch.ones(2, 3))",
]


def _python(code, *, block=()):
    blocker = f"""
import json, sys, warnings
warnings.filterwarnings("ignore")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {set(block)!r}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""
    done = subprocess.run([sys.executable, "-c", blocker + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_needs_torch_alone():
    code = """
import torch
import gmc_core
from gmc_core import gmc_weights, make_estimator
weight = gmc_weights(torch.tensor([1000.0, 0.0, 0.0, 0.0]))
flat = gmc_weights(torch.tensor([1.0, 0.5, 2.0]).log(), group_index=torch.tensor([4, -1, 4]))
logp = torch.zeros(1, 2, 3)
ones = torch.ones(1, 2, 3)
rules = [float(make_estimator(name)(logp, logp, ones, ones[..., 0]).mean()) for name in gmc_core.ESTIMATORS]
loaded = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps([weight.tolist(), flat.tolist(), rules, loaded]))
"""
    weight, flat, rules, loaded = _python(code, block=BLOCKED)
    assert weight == pytest.approx([4.8, 0, 0, 0], rel=1e-5)
    assert flat == pytest.approx([0.8, 0.5, 1.6], rel=1e-5)
    assert rules == [1.0] * len(gmc_core.ESTIMATORS)
    assert not set(BLOCKED) & set(loaded)


@pytest.mark.parametrize("call", BAD_CALLS)
def test_errors_teach_with_type_checks_on(call):
    with pytest.raises((ValueError, TypeError)) as caught:
        eval(call, {"torch": torch, **vars(gmc_core)})
    assert BAD_CALLS[call] in str(caught.value)


@pytest.mark.parametrize("call", BAD_TYPES)
def test_wrong_types_with_type_checks_on(call):
    with pytest.raises(TypeError):
        eval(call, {"torch": torch, **vars(gmc_core)})


def test_the_same_errors_without_type_checks():
    code = f"""
import torch
from gmc_core import *
answers = {{}}
for call in {[*BAD_CALLS, *BAD_TYPES]!r}:
    try:
        eval(call)
        answers[call] = ["nothing", ""]
    except Exception as error:
        answers[call] = [type(error).__name__, str(error)]
print(json.dumps(answers))
"""
    answers = _python(code)
    for call, words in BAD_CALLS.items():
        kind, message = answers[call]
        assert kind in ("ValueError", "TypeError") and words in message, (call, kind, message)
    for call in BAD_TYPES:
        assert answers[call][0] == "TypeError", (call, answers[call])


def test_annotations_are_enforced_while_the_tests_run():
    from jaxtyping import TypeCheckError

    with pytest.raises(TypeCheckError):
        gmc_core.group_mass(torch.tensor([1, 2, 3]))


def test_public_names_are_explicit_and_exist():
    assert sorted(gmc_core.__all__) == sorted(set(gmc_core.__all__))
    for name in gmc_core.__all__:
        assert getattr(gmc_core, name) is not None
    contract = [
        "trajectory_log_ratio",
        "group_mass",
        "gmc_weights",
        "tic_weights",
        "self_normalized_weights",
        "water_filling_weights",
        "effective_sample_size",
        "group_advantages",
        "policy_gradient_loss",
        "ESTIMATORS",
        "make_estimator",
        "METRICS",
    ]
    assert set(contract) <= set(gmc_core.__all__)
