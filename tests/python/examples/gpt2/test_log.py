# SPDX-License-Identifier: MIT
"""The losses of data that is not trained on, and the log that TensorBoard shows."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from .conftest import BATCH, LENGTH, VOCABULARY, Program, batch, loss_of, small_model, write_tokens

STEPS, EVERY, BATCHES = 7, 3, 2
SETTINGS = (
    "--steps", STEPS, "--warmup", 0, "--lr", 1e-2, "--batch", BATCH, "--length", LENGTH,
    "--save-every", 2,
)  # fmt: skip


@pytest.fixture
def trained(gpt2: Program, tmp_path: Path) -> tuple[Any, ...]:
    """The arguments of a training that has been done, without the folder of its results."""
    small_model(layers=1).save_pretrained(tmp_path / "model")
    for name in ("tokens", "unseen"):
        write_tokens(tmp_path / f"{name}.bin", torch.randint(VOCABULARY, (200,)).tolist())
    arguments = ("train", "--model", tmp_path / "model", "--data", tmp_path / "tokens.bin")
    gpt2(
        *arguments, *SETTINGS, "--out", tmp_path / "out", "--tensorboard", tmp_path / "events",
        "--validation", tmp_path / "unseen.bin", "--validate-every", EVERY,
        "--validation-batches", BATCHES,
    )  # fmt: skip
    return (*arguments, *SETTINGS)


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "log.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_loss_of_unseen_data_is_pytorchs_and_changes_nothing(
    gpt2: Program, tmp_path: Path, trained: tuple[Any, ...]
) -> None:
    rows = rows_of(tmp_path / "out")
    assert [bool(row["validation_loss"]) for row in rows] == [
        (step + 1) % EVERY == 0 or step + 1 == STEPS for step in range(STEPS)
    ]
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out").double()
    tokens = torch.frombuffer(
        bytearray((tmp_path / "unseen.bin").read_bytes()[1024:]), dtype=torch.int16
    )
    with torch.no_grad():
        losses = [loss_of(model, *batch(tokens.long(), n)).item() for n in range(BATCHES)]
    assert float(rows[-1]["validation_loss"]) == pytest.approx(sum(losses) / BATCHES, rel=1e-5)
    gpt2(*trained, "--out", tmp_path / "plain")
    plain = tmp_path / "plain" / "model.safetensors"
    assert plain.read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
    assert [row["loss"] for row in rows_of(tmp_path / "plain")] == [row["loss"] for row in rows]


def checksum(data: bytes) -> int:
    """The masked CRC-32C of a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records_of(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert len(record) == length
        assert data[8:12] == struct.pack("<I", checksum(data[:8]))
        assert data[12 + length : 16 + length] == struct.pack("<I", checksum(record))
        yield record
        data = data[16 + length :]


def test_records_are_whole_and_have_their_checksums(
    tmp_path: Path, trained: tuple[Any, ...]
) -> None:
    assert checksum(b"123456789") == (0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8 & 0xFFFFFFFF
    (path,) = (tmp_path / "events").iterdir()
    version, start, *steps = records_of(path.read_bytes())
    assert version.endswith(b"\x10\x00\x1a\x0dbrain.Event:2")
    assert start.endswith(b"\x10\x00\x3a\x02\x08\x01")
    rows = rows_of(tmp_path / "out")
    assert len(steps) == STEPS
    for step, (record, row) in enumerate(zip(steps, rows, strict=True)):
        assert record[9:11] == bytes([0x10, step])
        loss = b"\x0a\x0aloss/train\x15" + struct.pack("<f", float(row["loss"]))
        assert loss in record
        assert (b"loss/validation" in record) == bool(row["validation_loss"])


def test_tensorboard_shows_each_step_of_a_training_that_began_anew_once(
    gpt2: Program, tmp_path: Path, trained: tuple[Any, ...]
) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def shown() -> Any:
        events = reader.EventAccumulator(str(tmp_path / "events"))
        events.Reload()
        return events

    rows = rows_of(tmp_path / "out")
    losses = [float(row["loss"]) for row in rows]
    unseen = {
        int(row["step"]): float(row["validation_loss"]) for row in rows if row["validation_loss"]
    }
    events = shown()
    assert {each.step: each.value for each in events.Scalars("loss/validation")} == pytest.approx(
        unseen
    )
    assert {"gradient_norm", "learning_rate", "tokens_per_second"} <= {*events.Tags()["scalars"]}
    for _ in range(2):
        scalars = shown().Scalars("loss/train")
        assert [scalar.step for scalar in scalars] == list(range(STEPS))
        assert [scalar.value for scalar in scalars] == pytest.approx(losses)
        (tmp_path / "out" / "checkpoint.safetensors").unlink()
        gpt2(*trained, "--out", tmp_path / "out", "--tensorboard", tmp_path / "events")
    assert len(list((tmp_path / "events").iterdir())) == 3
