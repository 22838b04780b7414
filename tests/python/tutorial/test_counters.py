# SPDX-License-Identifier: MIT
"""`transformer-kernels tutorial --counters`: which launches are counted, and what is kept."""

from __future__ import annotations

import json
import sys

import pytest

from transformer_kernels import cli
from transformer_kernels.tutorial import command, counters, rungs, show
from transformer_kernels.tutorial.rungs import Rung

STEP = rungs.TUTORIALS / "step3-attention"
NAIVE, ONLINE = Rung(STEP / "cuda1_naive.cu"), Rung(STEP / "cuda3_online.cu")

# Stands in for ncu: every counter of every kernel that it is asked for has its length as its value.
NCU = """
import sys
options = dict(zip(sys.argv[1::], sys.argv[2::]))
print("==PROF== Connected to process 7")
print("cuda | the rung's own line")
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for kernel in options["--kernel-name"].split("(")[1].split(")")[0].split("|"):
    for metric in options["--metrics"].split(","):
        print(f'"0","void {kernel}<16>(int, Map<4>)","{metric}","inst","{len(metric)},000,000"')
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    (tmp_path / "ncu.py").write_text(NCU)
    monkeypatch.setenv("NCU", f"{sys.executable} {tmp_path / 'ncu.py'}")
    return tmp_path


def test_the_kernels_of_a_rung_are_counted_and_no_others():
    assert counters.kernels(NAIVE) == ["scores_kernel", "softmax", "sum_kernel"]
    assert counters.kernels(Rung(STEP / "cuda5_triton.py")) == ["attention"]
    for step in counters.COLUMNS:
        for rung in rungs.rungs(rungs.TUTORIALS / step, ("cuda",)):
            assert counters.kernels(rung), rung.source


def test_a_row_has_the_columns_of_its_step(ncu):
    rows, reason = counters.count(ONLINE, ncu)
    assert reason == ""
    assert list(rows) == ["cuda3_online"]
    assert list(rows["cuda3_online"]) == list(counters.COLUMNS[ONLINE.step])
    name = "smsp__inst_executed.sum"
    assert rows["cuda3_online"]["instructions, millions"] == len(name)
    rows, reason = counters.count(NAIVE, ncu)
    assert reason == ""
    assert list(rows) == [f"cuda1_naive: {name}" for name in counters.kernels(NAIVE)]


def test_why_nothing_was_counted_is_told(ncu, monkeypatch):
    (ncu / "ncu.py").write_text("print('==ERROR== ERR_NVGPUCTRPERM: no permission')\nprint(7)")
    assert counters.count(ONLINE, ncu) == ({}, "==ERROR== ERR_NVGPUCTRPERM: no permission")
    (ncu / "ncu.py").write_text("print('there is no CUDA card')")
    assert counters.count(ONLINE, ncu) == ({}, "there is no CUDA card")
    (ncu / "ncu.py").write_text("")
    assert counters.count(ONLINE, ncu) == ({}, "ncu says nothing")
    (ncu / "ncu.py").write_text("while True: pass")
    monkeypatch.setattr(rungs, "SECONDS", 0.1)
    assert counters.count(ONLINE, ncu) == ({}, "takes more than 0.1 s")
    monkeypatch.setenv("NCU", "no-such-ncu")
    assert counters.count(ONLINE, ncu) == ({}, "no-such-ncu is not installed")


def test_the_command_keeps_what_it_counted(ncu, monkeypatch, capsys):
    monkeypatch.chdir(ncu)
    monkeypatch.setattr(command, "_machine", lambda _kind: "Card")
    said = {"cuda2_tiled": "nvcc fails"}
    monkeypatch.setattr(
        command.ladder, "build_all", lambda wanted, *_: {r: said.get(r.name, "") for r in wanted}
    )
    counters.store("Card", {"step2-reduction": {"cuda1": {"calls": 7}}}, ncu)
    assert cli.main(["tutorial", "step3", "--counters", str(ncu)]) == 0
    printed = capsys.readouterr().out
    assert "step3-attention, cuda2_tiled: nvcc fails\n" in printed
    assert "step3-attention, cuda4_mma: counted\n" in printed
    kept = json.loads((ncu / counters.FILE).read_text())
    assert kept["steps"].keys() == {"step2-reduction", STEP.name}
    assert "cuda1_naive: softmax" in kept["steps"][STEP.name]
    assert "| cuda4_mma |" in show.counters_table(STEP, ncu)
    monkeypatch.setenv("NCU", "no-such-ncu")
    assert cli.main(["tutorial", "step3", "--counters", str(ncu / "none")]) == 1
    assert not (ncu / "none").exists()
