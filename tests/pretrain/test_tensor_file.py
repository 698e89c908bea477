"""The same content gives the same bytes, whichever process writes it."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pretrain.encoders.weights import write_tensors

TENSORS = {
    "b": torch.arange(6.0).view(2, 3),
    "a": torch.tensor([1, 2], dtype=torch.int64),
    "half": torch.tensor([0.5], dtype=torch.float16),
    "none": torch.empty(0, 4),
}
TEXTS = ("", "ε", '{"a": "\\n"}', "\x01\n", "\U0001f600")
METADATA = {f"key {number}": text for number, text in enumerate(TEXTS)}


def test_what_is_written_is_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, TENSORS, METADATA)
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], values) for name, values in TENSORS.items())
    assert all(found[name].dtype == values.dtype for name, values in TENSORS.items())
    with safe_open(path, "pt") as file:
        assert file.metadata() == METADATA


def test_only_the_order_of_the_metadata_is_another(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_tensors(ours, TENSORS, METADATA)
    save_file(TENSORS, theirs, METADATA)
    headers, rests = [], []
    for path in (ours, theirs):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        assert start % 8 == 0
        headers.append(json.loads(content[8:start]))
        rests.append(content[start:])
    assert headers[0] == headers[1]
    assert rests[0] == rests[1]


def test_the_order_in_which_metadata_is_given_changes_nothing(tmp_path: Path) -> None:
    written = set()
    for number, names in enumerate([sorted(METADATA), sorted(METADATA, reverse=True)] * 10):
        path = tmp_path / str(number)
        write_tensors(path, TENSORS, {name: METADATA[name] for name in names})
        written.add(path.read_bytes())
    assert len(written) == 1
