"""The benchmark of the vLLM engine compares equal work, and is skipped by name where vLLM is missing."""

import importlib.util
import sys

import pytest

from benchmarks import vllm_throughput
from benchmarks.__main__ import main


def test_it_is_skipped_by_name_where_vllm_is_missing(monkeypatch, capsys, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else find_spec(name, *a))
    monkeypatch.setattr("gmc_core.paths.BUILD", tmp_path)
    assert main(["vllm_throughput"]) == 0
    assert "vllm_throughput skipped: vLLM is not installed" in capsys.readouterr().out


def test_rows_say_what_was_measured(monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed (make live)")
    for name, value in {"PROMPTS": 2, "GROUP": 4, "TOKENS": 4, "TURNS": 2, "UPDATES": 2, "SHAPES": ({},)}.items():
        monkeypatch.setattr(vllm_throughput, name, value)
    rows = vllm_throughput.measure()
    what = [row["what"].split(",")[0] for row in rows]
    assert what == ["VllmEngine", "LLM.generate", "ratio", "ratio in CPU time", "weight update", "memory copy"]
    assert all(row["value"] > 0 for row in rows)
    assert "0.45 M parameters" in rows[0]["what"] and "1.8 MB in 35 tensors" in rows[4]["what"]
