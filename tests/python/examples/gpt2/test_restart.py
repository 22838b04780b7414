# SPDX-License-Identifier: MIT
"""A training that is killed while it writes, or finds damaged files: nothing is lost."""

from __future__ import annotations

import contextlib
import csv
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Program, kill_when_saved

STEPS = 40


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    text = "".join(random.choice("abcdefgh ") for _ in range(300))
    (tmp_path / "text.txt").write_text(text)

    def command(out: Path, *flags: Any) -> list[str]:
        return [
            "train", "--data", str(tmp_path / "text.txt"), "--out", str(out),
            "--steps", str(STEPS), "--save-every", "1", "--batch", "2", "--length", "12",
            "--accumulate", "2", "--layers", "1", "--channels", "16", "--heads", "2",
            "--positions", "16", *map(str, flags),
        ]  # fmt: skip

    return command


def rows_of(out: Path) -> list[tuple[str, ...]]:
    """The log but for its times."""
    with (out / "log.csv").open() as file:
        return [tuple(row.values())[:-1] for row in csv.DictReader(file)]


def assert_same(out: Path, expected: Path) -> None:
    for name in ("model.safetensors", "checkpoint.safetensors", "config.json"):
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name
    assert rows_of(out) == rows_of(expected)
    assert not list(out.glob("*.partial"))


@pytest.mark.parametrize("flags", [(), ("--bfloat16", "--recompute", "layer")], ids=str)
def test_a_training_that_is_killed_at_any_byte_ends_as_if_it_had_not_been(
    gpt2: Program, tmp_path: Path, command: Callable[..., list[str]], flags: tuple[str, ...]
) -> None:
    gpt2(*command(tmp_path / "whole", *flags))
    checkpoint, model = (
        (tmp_path / "whole" / name).stat().st_size
        for name in ("checkpoint.safetensors", "model.safetensors")
    )
    out = tmp_path / "killed"
    start = [os.environ["TFK_GPT2"], *command(out, *flags)]
    kill_when_saved(start, out)
    # The kernel ends a program that writes beyond the limit: it is dead at that byte of the file.
    for limit in [1, 8, 500, *(random.randrange(checkpoint) for _ in range(5))]:
        result = subprocess.run(
            start, capture_output=True, timeout=600, check=False,
            preexec_fn=lambda limit=limit: resource.setrlimit(
                resource.RLIMIT_FSIZE, (limit, limit)
            ),
        )  # fmt: skip
        assert result.returncode == -signal.SIGXFSZ or (result.returncode == 0 and limit >= model)
    gpt2(*command(out, *flags))
    assert_same(out, tmp_path / "whole")


def test_a_training_that_has_ended_is_left_as_it_is(
    gpt2: Program, tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "out"
    assert f"the last {STEPS} of them".encode() in gpt2(*command(out)).stdout
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with (out / "log.csv").open("a") as log:
        log.write(f"{STEPS}"[:1])  # a row that was cut off in the number of its step
    assert b"the last 0 of them" in gpt2(*command(out)).stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_terminal_shows_the_progress_and_nothing_else_does(
    gpt2: Program, tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    assert gpt2(*command(tmp_path / "quiet")).stderr == b""
    ours, programs = os.openpty()
    start = [os.environ["TFK_GPT2"], *command(tmp_path / "shown")]
    shown = b""
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=programs):
        os.close(programs)
        # The last reader of a terminal that nobody writes to gets an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert shown.startswith(b"\r[")
    assert f"1/{STEPS}  loss ".encode() in shown


def test_a_full_disk_is_an_error_that_leaves_the_checkpoint(
    gpt2: Program, tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "out"
    gpt2(*command(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    limit = len(before["model.safetensors"]) // 2
    result = gpt2(
        *command(out), fails=True, restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert b"cannot be written: File too large" in result.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_checkpoint_that_is_damaged_is_refused_and_left(
    gpt2: Program, tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "out"
    gpt2(*command(out))
    checkpoint = out / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = [0, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1]
    for cut in [*cuts, *(random.randrange(len(whole)) for _ in range(8))]:
        checkpoint.write_bytes(whole[:cut])
        gpt2(*command(out), fails=True)
        assert checkpoint.read_bytes() == whole[:cut]
    for _ in range(24):
        place, bit = random.randrange(len(whole)), random.randrange(8)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        checkpoint.write_bytes(damaged)
        gpt2(*command(out), fails=True)
        assert checkpoint.read_bytes() == bytes(damaged)
    checkpoint.write_bytes(whole)
    result = gpt2(*command(out, "--lr", 0.5), fails=True)
    assert b"belongs to a training with the settings" in result.stderr
