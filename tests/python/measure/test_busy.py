# SPDX-License-Identifier: MIT
"""A busy machine is found by its processors and by its copies."""

from __future__ import annotations

import os

import pytest
import torch

from transformer_kernels.measure import busy
from transformer_kernels.measure.busy import Signs, Watch

CPU = torch.device("cpu")
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Two processors of this process and one of others; sets the seconds that all were busy, idle
    and ours since the start."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(busy, "_STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    own = [0.0]
    monkeypatch.setattr(busy.time, "process_time", lambda: own[0])

    def at(busy_seconds, idle_seconds, own_seconds):
        own[0] = own_seconds
        used, idle = (int(seconds * TICKS / 2) for seconds in (busy_seconds, idle_seconds))
        line = f"{used} 0 0 {idle} 0 0 0 0 {used} 0"  # the last columns count again
        elsewhere = f"{10**6 + used} 0 0 0 0 0 0 0 0 0"
        stat.write_text(f"cpu 1 1\ncpu0 {line}\ncpu1 {line}\ncpu2 {elsewhere}\nintr 1\n")

    at(0, 0, 0)
    return at


@pytest.mark.parametrize(
    ("seconds", "share"),
    [((8, 12, 8), 0.0), ((14, 6, 8), 0.3), ((20, 0, 2), 0.9), ((7, 13, 8), 0.0)],
)
def test_the_share_of_others_is_what_this_process_did_not_use(machine, seconds, share):
    watch = Watch(CPU)
    machine(*seconds)
    assert watch.signs(20.0).share == pytest.approx(share, abs=0.01)


def test_a_machine_without_counters_has_no_share(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(busy, "_STAT", tmp_path / "absent")
    signs = Watch(CPU).signs(20.0)
    assert signs.share is None
    assert signs.reason is None


def test_the_fastest_copy_is_kept(machine, tmp_path):
    watch = Watch(CPU)
    assert watch.signs(10.0) == Signs(None, 10.0, 10.0)
    assert watch.signs(20.0).fastest_gbps == 20.0
    assert watch.signs(5.0).fastest_gbps == 20.0
    assert Watch(CPU).signs(5.0).fastest_gbps == 20.0  # another run of the program
    (tmp_path / "cache" / "transformer_kernels" / "copies.json").write_text("no JSON")
    assert Watch(CPU).signs(5.0).fastest_gbps == 5.0


def test_a_cache_that_cannot_be_written_is_no_error(machine, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Watch(CPU).signs(5.0).fastest_gbps == 5.0


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        (Signs(0.1, 15.0, 20.0), None),
        (Signs(0.63, 15.0, 20.0), "other programs took 63 % of its processors"),
        (Signs(None, 4.1, 20.0), "a copy ran at 4.1 GB/s, and at 20.0 before"),
        (Signs(0.5, 4.1, 20.0), "other programs took 50 % of its processors; a copy ran at"),
    ],
)
def test_the_reason_names_what_was_seen(signs, words):
    assert signs.reason is None if words is None else words in signs.reason
