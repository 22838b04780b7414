# SPDX-License-Identifier: MIT
"""pyproject.toml beside the files of tools/requirements, and which CUDA kernels CMake builds."""

from __future__ import annotations

import importlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build_wheel
import check_wheel
import render_requirements
from setup_env import REQUIREMENTS, ROOT
from transformer_kernels._processor import cpu_instruction_sets

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
SELF = "transformer-kernels["


def packages(extra: str) -> set[str]:
    """The requirements of an extra, with those of the extras that it names."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if requirement.startswith(SELF):
            inner = requirement.removeprefix(SELF).removesuffix("]").split(",")
            found |= set[str]().union(*map(packages, inner))
        else:
            found.add(requirement.replace("'", '"'))
    return found


def required(*groups: str) -> set[str]:
    lines = [
        line for group in groups for line in (REQUIREMENTS / f"{group}.txt").read_text().split("\n")
    ]
    return {line for line in lines if line and not line.startswith("#")}


@pytest.mark.parametrize(
    ("extra", "groups"),
    [("dev", ("run", "lint", "ci")), ("docs", ("docs",)), ("fpga", ("fpga",))],
)
def test_an_extra_is_what_make_installs(extra: str, groups: tuple[str, ...]) -> None:
    assert packages(extra) == required(*groups)


def test_notebooks_add_to_the_benchmark_what_make_jupyter_installs() -> None:
    assert packages("notebook") - packages("bench") == required("notebook")
    assert required("tracking") <= packages("profile")


def test_requirements_and_environment_are_those_of_pyproject() -> None:
    for name, text in render_requirements.rendered(PROJECT).items():
        assert (ROOT / name).read_text() == text
    lines = render_requirements.requirements(PROJECT)
    assert {"torch>=2.10", *packages("bench")} <= set(lines)
    assert not any(SELF in line for line in lines)


def test_all_is_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert packages("all") == set().union(*(packages(extra) for extra in extras))


def cmake() -> str:
    """The CMake of the environment, which has a Ninja beside it."""
    own = Path(sys.executable).with_name("cmake")
    return str(own if own.exists() else shutil.which("cmake"))


def executable(path: Path, script: str = "") -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def cuda_settings(tmp_path: Path, cards: str | None, *options: str) -> tuple[str, str]:
    """Asks CMake on a machine with an nvcc and these cards whether CUDA kernels are built
    by default, and for which architectures."""
    executable(tmp_path / "nvcc")
    if cards is not None:
        executable(tmp_path / "nvidia-smi", f"printf '{cards}'" if cards else "exit 9")
    script = tmp_path / "settings.cmake"
    script.write_text(
        f"set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)\nset(CMAKE_PREFIX_PATH {tmp_path})\n"
        f"set(CMAKE_PROGRAM_PATH {tmp_path})\ninclude({ROOT}/cmake/cuda_architectures.cmake)\n"
        'message("${TFK_CUDA_DEFAULT} ${CMAKE_CUDA_ARCHITECTURES}")\n'
    )
    command = [cmake(), *options, "-P", str(script)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    return answer[0], answer[1]


EVERY = "75-real;80-real;86-real;89-real;90a-real;100f-real;120"


@pytest.mark.parametrize(
    ("cards", "options", "settings"),
    [
        (None, (), ("OFF", EVERY)),
        ("", (), ("OFF", EVERY)),  # a driver that does not answer
        ("7.0\\n", (), ("OFF", EVERY)),  # older than the kernels
        ("9.0\\n9.0\\n8.6\\n", (), ("ON", "90a-real;86-real")),
        ("10.3\\n12.0\\n", (), ("ON", "100f-real;120-real")),
        ("8.0\\n", ("-DTFK_CUDA_ARCHITECTURES=all",), ("ON", EVERY)),
        ("8.0\\n", ("-DTFK_CUDA_ARCHITECTURES=75-real;90a",), ("ON", "75-real;90a")),
    ],
)
def test_cuda_kernels_are_for_the_cards_of_the_machine(
    tmp_path: Path, cards: str | None, options: tuple[str, ...], settings: tuple[str, str]
) -> None:
    assert cuda_settings(tmp_path, cards, *options) == settings


def configured(folder: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """CMake's answer to a project of C++ that includes one of our modules."""
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(probe LANGUAGES CXX)\n"
        f"include({ROOT}/cmake/{module}.cmake)\n"
    )
    command = [cmake(), "-S", str(folder), "-B", str(folder / "build"), "-G", "Ninja", *options]
    return subprocess.run(
        [*command, f"-DCMAKE_MAKE_PROGRAM={Path(cmake()).with_name('ninja')}"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "says", "passes"),
    [
        ('exec c++ "$@" -static-libstdc++', "libstdc++.so.6, which", True),
        (
            'case "$1" in -print-file-name=*) echo "${1#*=}";; '
            '*) exec c++ "$@" -static-libstdc++;; esac',
            "links libstdc++ statically, expected the shared libstdc++.so",
            False,
        ),
    ],
)
def test_a_static_runtime_is_replaced_or_refused(
    tmp_path: Path, script: str, says: str, passes: bool
) -> None:
    executable(tmp_path / "compiler", script)
    compiler = f"-DCMAKE_CXX_COMPILER={tmp_path / 'compiler'}"
    answer = configured(tmp_path, "shared_library", compiler)
    assert says in " ".join((answer.stdout + answer.stderr).split())
    assert (answer.returncode == 0) == passes


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there is one set")
def test_kernels_are_for_the_processor_of_the_machine(tmp_path: Path) -> None:
    def sets(*options: str) -> set[str]:
        answer = configured(tmp_path, "cpu_isa", *options)
        lines = [line for line in answer.stdout.splitlines() if "CPU instruction sets:" in line]
        return set(lines[0].split(": ")[1].split(";"))

    usual = sets()
    assert {"avx2", cpu_instruction_sets()[-1]} - {""} <= usual
    assert usual | {"scalar"} <= sets("-DTFK_ISAS=all")
    assert "scalar" not in usual or not {"avx2"} & set(cpu_instruction_sets())


def test_a_wheel_with_cuda_has_every_architecture_unless_told() -> None:
    assert build_wheel.cmake_defines(False, "all") == ["TFK_ISAS=all", "TFK_CUDA=OFF"]
    assert build_wheel.cmake_defines(True, "all")[2] == "TFK_CUDA_ARCHITECTURES=all"


def test_a_wheel_is_tried_beside_the_oldest_pytorch_and_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = []

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        fetched.append(command[-1])
        return subprocess.CompletedProcess(command, returncode=1)

    monkeypatch.setattr(check_wheel, "run", run)
    assert not check_wheel.fetch_torch("python", check_wheel.VERSIONS[0], "index")
    assert not check_wheel.fetch_torch("python", check_wheel.VERSIONS[-1], "index")
    assert fetched == ["torch==2.10.*", "torch>=2.10"]
