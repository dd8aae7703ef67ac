"""One file holds any tree of tensors and plain data, whole or not at all."""

import json

import pytest
import torch

from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.run_directory import DamagedRecordError

ORIGIN = {"fingerprint": "0123456789abcdef", "digest": "89abcdef"}


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def test_a_tree_comes_back_as_it_was(tmp_path):
    rows = torch.arange(24).view(4, 6)
    content = {
        "update": 7, "seconds": {"wall": 1.5}, "note": None, "flags": [True, False], "nothing": {}, "empty": [],
        "learner": {"model.layer.0": torch.randn(3, 2, dtype=torch.bfloat16), "master": [torch.randn(3, 2)]},
        "queue": [
            {"prompt": "1+2=", "response": rows[:2], "mask": rows[:2] > 3},  # two views of one storage
            {"prompt": "é/ü", "response": rows[2:], "mask": rows[2:].T > 3},
        ],
        "step": torch.tensor(3.0), "none": torch.zeros(0, 4), "again": rows,
    }  # fmt: skip
    save_checkpoint(tmp_path / "file", content, **ORIGIN)
    back = load_checkpoint(tmp_path / "file", **ORIGIN)
    assert same(content, back)
    back["queue"][0]["response"].zero_()
    assert back["again"].sum() == rows.sum(), "no two tensors share their memory"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"queue": [{"when": object()}]}, TypeError, "object at queue/0/when"),
        ({"optimizer": {0: 1.0}}, TypeError, "key 0 at optimizer"),
        ({"a/b": 1}, ValueError, "'a/b' at its root"),
    ],
)
def test_what_cannot_be_saved_is_named_and_the_old_file_stays(tmp_path, content, error, message):
    save_checkpoint(tmp_path / "file", {"update": 1}, **ORIGIN)
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path / "file", content, **ORIGIN)
    assert load_checkpoint(tmp_path / "file", **ORIGIN) == {"update": 1}


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "file"
    save_checkpoint(path, {"update": 1}, **ORIGIN)

    def full_disk(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match=r"(?i)no space left"):
        save_checkpoint(path, {"update": 2}, **ORIGIN)
    assert load_checkpoint(path, **ORIGIN) == {"update": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_no_checkpoint_is_damaged(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(DamagedRecordError, match="cannot be read"):
        load_checkpoint(path, **ORIGIN)
    save_checkpoint(path, {"weights": torch.zeros(100)}, **ORIGIN)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DamagedRecordError, match="cannot be read"):
        load_checkpoint(path, **ORIGIN)
    from safetensors.torch import save_file

    save_file({}, path, metadata={"state": json.dumps({"update": 3})})  # what an earlier version wrote
    with pytest.raises(DamagedRecordError, match="cannot be read"):
        load_checkpoint(path, **ORIGIN)
