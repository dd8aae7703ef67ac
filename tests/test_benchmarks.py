"""The benchmarks run and say what they measured; their times are nobody's verdict."""

import pytest

from benchmarks.__main__ import BENCHMARKS, main


def test_rows_say_what_was_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("benchmarks.weights.CALLS", 20)
    monkeypatch.setattr("gmc_core.paths.BUILD", tmp_path / "build")
    assert main(["weights"]) == 0
    printed = capsys.readouterr().out
    assert "gmc_weights, 512 x 16" in printed and "ms (median)" in printed
    assert (tmp_path / "build" / "bench.json").exists()


def test_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["speed"])
    message = capsys.readouterr().err
    assert "speed" in message and all(name in message for name in BENCHMARKS)
