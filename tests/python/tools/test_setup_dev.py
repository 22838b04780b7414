# SPDX-License-Identifier: MIT
"""`make setup` reports what is missing; `make dev`, `jupyter` and `tensorboard` fit the machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import dev
import setup_dev
from setup_env import REQUIREMENTS, ROOT, SetupError, SystemPackage

ABSENT = SystemPackage("a C++ compiler", lambda: None, {"apt-get": "g++"})


def test_a_missing_compiler_is_named_with_its_remedy_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {**setup_dev.setup_env.system_packages(), "compiler": ABSENT}
    monkeypatch.setattr(setup_dev.setup_env, "system_packages", lambda: known)
    monkeypatch.setattr(
        setup_dev.shutil, "which", lambda name, **_: name if name == "apt-get" else None
    )
    assert setup_dev.main(["--check"]) == 1
    printed = capsys.readouterr()
    assert re.search(
        r"MISSING  a C\+\+ compiler: install with: .*apt-get install g\+\+", printed.out
    )
    assert "optional git: without it no hooks" in printed.out
    assert "a C++ compiler is missing" in printed.err


@pytest.mark.parametrize(
    ("builds", "well", "problem"),
    [
        (True, True, None),
        (False, True, "the build failed"),
        (True, False, "doctor found a problem"),
    ],
)
def test_a_setup_makes_builds_and_asks_the_package(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    builds: bool,
    well: bool,
    problem: str | None,
) -> None:
    groups = []
    monkeypatch.setattr(setup_dev.setup_env, "set_up", lambda g, *_: groups.extend(g))
    monkeypatch.setattr(setup_dev, "install_hooks", lambda: "")
    monkeypatch.setattr(setup_dev, "succeeds", lambda *c: well if "doctor" in c else builds)
    monkeypatch.setattr(setup_dev, "required", list)
    assert setup_dev.main([]) == (0 if problem is None else 1)
    assert tuple(groups) == setup_dev.GROUPS
    assert (problem or "") in capsys.readouterr().err


def test_a_setup_that_cannot_go_on_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise SetupError("this machine lacks a unicorn")

    monkeypatch.setattr(setup_dev.setup_env, "set_up", fails)
    assert setup_dev.main([]) == 1
    assert "lacks a unicorn" in capsys.readouterr().err


def test_hooks_are_left_to_a_hooks_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-1] == "core.hooksPath", "pre-commit was called"
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr(setup_dev.shutil, "which", lambda name: name)
    monkeypatch.setattr(setup_dev, "ROOT", tmp_path)
    monkeypatch.setattr(setup_dev.subprocess, "run", run)
    assert setup_dev.install_hooks() == "this is no checkout of git"
    (tmp_path / ".git").mkdir()
    assert "core.hooksPath" in setup_dev.install_hooks()


@pytest.mark.parametrize(
    ("task", "gpu", "service"),
    [
        ("shell", True, "kernel-fusion-dev"),
        ("shell", False, "kernel-fusion-cpu"),
        ("jupyter", True, "jupyter"),
        ("jupyter", False, "jupyter-cpu"),
        ("tensorboard", False, "tensorboard"),
    ],
)
def test_a_container_fits_the_machine(
    monkeypatch: pytest.MonkeyPatch, task: str, gpu: bool, service: str
) -> None:
    monkeypatch.setattr(dev, "has_compose", lambda: True)
    monkeypatch.setattr(dev, "gives_gpus", lambda: gpu)
    monkeypatch.setattr(dev, "prepare", lambda _: pytest.fail(".venv is not needed"))
    command, environment = dev.command_of(task, cpu=False, is_local=False, host="127.0.0.1")
    assert command[:2] == ["docker", "compose"]
    assert command[-1] == service
    assert service in yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    assert environment["UID"].isdigit()


def test_without_docker_the_environment_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    monkeypatch.setattr(dev, "has_compose", lambda: False)
    monkeypatch.setattr(dev, "prepare", prepared.append)
    monkeypatch.setenv("JUPYTER_PORT", "9999")
    command, environment = dev.command_of("jupyter", cpu=True, is_local=False, host="127.0.0.1")
    assert prepared == ["jupyter"]
    assert "--port=9999" in command
    assert environment["PATH"].startswith(str(dev.SCRIPTS))
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_what_a_task_needs_can_be_installed() -> None:
    for groups, _ in dev.NEEDS.values():
        assert all((REQUIREMENTS / f"{group}.txt").exists() for group in groups)


def test_make_calls_each_task() -> None:
    def called(target: str) -> str:
        command = ["make", "--dry-run", "--no-print-directory", target]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert called("dev").strip().endswith("tools/dev.py shell")
    assert called("jupyter-cpu").strip().endswith("tools/dev.py jupyter --cpu")
    assert called("jupyter-mac").strip().endswith("tools/dev.py jupyter --local")
    assert called("tensorboard").strip().endswith("tools/dev.py tensorboard")


@pytest.mark.parametrize(
    ("runtimes", "gives"), [('{"nvidia":{}} null', True), ('{"runc":{}} null', False)]
)
def test_a_card_is_used_where_docker_hands_it_on(monkeypatch, capsys, runtimes, gives):
    monkeypatch.setattr(dev, "has_nvidia_driver", lambda: True)
    said = subprocess.CompletedProcess([], 0, stdout=runtimes)
    monkeypatch.setattr(dev.subprocess, "run", lambda *_, **__: said)
    assert dev.gives_gpus() is gives
    assert ("toolkit" in capsys.readouterr().out) is not gives
