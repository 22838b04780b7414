# SPDX-License-Identifier: MIT
"""A busy machine is found by its processors and by its copies."""

from __future__ import annotations

import os

import pytest
import torch

from transformer_kernels.measure import busy, ceilings
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


def _signs(watch, *copies):
    for gbps in copies:
        watch.add(gbps)
    return watch.signs()


@pytest.mark.parametrize(
    ("seconds", "share"),
    [((8, 12, 8), 0.0), ((14, 6, 8), 0.3), ((20, 0, 2), 0.9), ((7, 13, 8), 0.0)],
)
def test_the_share_of_others_is_what_this_process_did_not_use(machine, seconds, share):
    watch = Watch(CPU)
    machine(*seconds)
    assert _signs(watch, 20.0).share == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("load", "share"), [(0.9, 0.0), (5.0, 1.0), (None, None)])
def test_without_counters_the_share_is_that_of_the_load(
    machine, monkeypatch, tmp_path, load, share
):
    monkeypatch.setattr(busy, "_STAT", tmp_path / "absent")
    monkeypatch.setattr(busy, "_load", lambda: load)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    now = iter((100.0, 110.0))
    monkeypatch.setattr(busy.time, "perf_counter", lambda: next(now))
    watch = Watch(CPU)
    machine(0, 0, 10)  # one processor in all of the ten seconds
    assert _signs(watch, 20.0).share == (share if share is None else pytest.approx(share, abs=0.01))


@pytest.fixture
def uncounted(machine, monkeypatch, tmp_path):
    """A machine that counts neither the seconds of its processors nor its load, as those of a
    GPU are."""
    monkeypatch.setattr(busy, "_STAT", tmp_path / "absent")
    monkeypatch.setattr(busy, "_load", lambda: None)


def test_the_best_median_is_kept(uncounted, tmp_path):
    assert _signs(Watch(CPU), 10.0) == Signs(None, None, (10.0,), 10.0)
    assert _signs(Watch(CPU), 90.0, 20.0, 12.0).best_gbps == 20.0
    assert _signs(Watch(CPU), 5.0).best_gbps == 20.0  # another run of the program
    (tmp_path / "cache" / "transformer_kernels" / "copies.json").write_text("no JSON")
    assert _signs(Watch(CPU), 5.0).best_gbps == 5.0


def test_a_cache_that_cannot_be_written_is_no_error(uncounted, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _signs(Watch(CPU), 5.0).best_gbps == 5.0


@pytest.mark.parametrize(
    ("copies", "is_busy"), [((39.9, 41.0, 40.2), False), ((70.0, 30.0, 31.0, 32.0), True)]
)
def test_copies_are_compared_with_each_other_where_no_program_is_seen(machine, copies, is_busy):
    """An earlier run was faster, as on a host whose other guests were idle."""
    _signs(Watch(CPU), 75.8)
    watch = Watch(CPU)
    machine(8, 12, 8)
    assert (_signs(watch, *copies).reason is not None) == is_busy


def test_a_sample_is_a_rate(machine, monkeypatch):
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 16)
    watch = Watch(CPU)
    watch.sample()
    assert 0 < watch.signs().copies[0] < 1e5


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        (Signs(0.1, 9.0, (15.0, 2.0, 14.0), 20.0), None),
        (Signs(0.63, None, (15.0,), 20.0), "other programs took 63 % of its processors"),
        (
            Signs(None, None, (4.1, 9.0, 3.0), 20.0),
            "copies ran at 4.1 GB/s, the median of 3 measurements, and at 20.0 at best",
        ),
        (
            Signs(0.5, 2.26, (4.1,), 20.0),
            "other programs took 50 % of its processors (load average 2.3); copies ran at",
        ),
    ],
)
def test_the_reason_names_what_was_seen(signs, words):
    assert signs.reason is None if words is None else words in signs.reason
