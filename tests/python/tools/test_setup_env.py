# SPDX-License-Identifier: MIT
from __future__ import annotations

import sys
from pathlib import Path

import pytest

import setup_env
from setup_env import Environment, SetupError, SystemPackage


def test_without_a_driver_linux_never_asks_the_default_index() -> None:
    attempts = setup_env.torch_attempts("", driver=False, platform="linux")
    assert attempts
    for arguments in attempts:
        assert "--no-index" in arguments or setup_env.CPU_INDEX in arguments
        assert arguments[-1].endswith("+cpu")


def test_with_a_driver_the_default_build_is_taken() -> None:
    assert setup_env.torch_attempts("", driver=True, platform="linux") == [["torch>=2.10"]]


def test_an_override_is_the_only_attempt() -> None:
    for driver in (False, True):
        attempts = setup_env.torch_attempts("torch==2.11.0", driver, "linux")
        assert attempts == [["torch==2.11.0"]]


@pytest.mark.parametrize(
    ("version", "recent"),
    [
        ("2.10.0a0+git1", True),
        ("2.13.0+cpu", True),
        ("3.0.1", True),
        ("2.9.1", False),
        (None, False),
    ],
)
def test_recent_enough(version: str | None, recent: bool) -> None:
    assert setup_env.is_recent(version) is recent


def test_missing_packages_are_named_with_the_command_that_installs_them() -> None:
    packages = setup_env.system_packages()
    missing = [packages["compiler"], packages["gtest"]]
    message = setup_env.missing_message(missing, "apt-get")
    assert message.splitlines() == [
        "this machine lacks a C++ compiler and GoogleTest",
        "install with: sudo apt-get install g++ libgtest-dev",
    ]
    assert "package manager" in setup_env.missing_message(missing, None)


def test_a_missing_package_stops_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SystemPackage("a unicorn", lambda: None, {"apt-get": "unicorn"})
    monkeypatch.setattr(setup_env, "system_packages", lambda: {"unicorn": absent})
    monkeypatch.setattr(setup_env.os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="lacks a unicorn"):
        setup_env.require_system_packages(["unicorn"])


def test_a_stamp_holds_for_one_place_interpreter_and_content(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to(sys.executable)
    environment.mark_ready("run", "numpy")
    assert environment.is_ready("run", "numpy")
    assert not environment.is_ready("run", "numpy>=2")
    assert not environment.is_ready("lint", "numpy")
    moved = tmp_path / "moved"
    moved.mkdir()
    for entry in ("bin", ".ready-run"):
        (tmp_path / entry).rename(moved / entry)
    assert not Environment(moved).is_ready("run", "numpy")


def test_a_ready_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to(sys.executable)
    environment.mark_ready("run", (setup_env.REQUIREMENTS / "run.txt").read_text())
    monkeypatch.setattr(setup_env, "run", lambda *_, **__: pytest.fail("a process was started"))
    setup_env.set_up(["run"], [], tmp_path, override="")
