#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Opens a shell, Jupyter or TensorBoard: in a container where Docker runs, else from `.venv`.

    dev.py shell              kernel-fusion-dev of compose.yml where there is an NVIDIA driver
    dev.py jupyter --cpu      jupyter-cpu, whatever the machine has
    dev.py tensorboard --local    no container; a Mac's GPU is not seen from inside one

JUPYTER_PORT and TENSORBOARD_PORT are the ports, 8888 and 6006 unless named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setup_env import ROOT, SetupError, has_nvidia_driver, say, set_up

SCRIPTS = ROOT / ".venv" / "bin"
RUNS = ROOT / "runs"  # where the training examples log
# The services of compose.yml, for a machine with an NVIDIA driver and for one without.
SERVICES = {
    "shell": ("kernel-fusion-dev", "kernel-fusion-cpu"),
    "jupyter": ("jupyter", "jupyter-cpu"),
    "tensorboard": ("tensorboard", "tensorboard"),
}
# A task needs these groups of tools/requirements in `.venv`, and some need the built libraries.
NEEDS = {
    "shell": (("run",), True),
    "jupyter": (("run", "notebook", "tracking"), True),
    "tensorboard": (("run", "tracking"), False),
}
PORTS = {"JUPYTER_PORT": "8888", "TENSORBOARD_PORT": "6006"}


def has_compose() -> bool:
    """Whether `docker compose` is there and its engine answers."""
    if shutil.which("docker") is None:
        return False
    probes = (["docker", "compose", "version"], ["docker", "info"])
    return all(subprocess.run(p, capture_output=True, check=False).returncode == 0 for p in probes)


def gives_gpus() -> bool:
    """Whether Docker hands the machine's NVIDIA cards to containers; says so where it cannot."""
    if not has_nvidia_driver():
        return False
    command = ["docker", "info", "--format", "{{json .Runtimes}} {{json .DiscoveredDevices}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if "nvidia" not in found:
        say("Docker lacks NVIDIA's container toolkit: the container has no GPU")
    return "nvidia" in found


def in_container(task: str, gpu: bool) -> list[str]:
    service = SERVICES[task][0 if gpu else 1]
    start = ["run", "--rm"] if task == "shell" else ["up", "--build"]
    return ["docker", "compose", *start, service]


def local(task: str, host: str, scripts: Path = SCRIPTS) -> list[str]:
    port = {name: os.environ.get(name, default) for name, default in PORTS.items()}
    if task == "jupyter":
        # Jupyter wants to be asked by root, who is the user of many rented machines.
        root = ["--allow-root"] if os.geteuid() == 0 else []
        return [
            str(scripts / "jupyter-lab"), *root, f"--ServerApp.root_dir={ROOT}", f"--ip={host}",
            f"--port={port['JUPYTER_PORT']}", "--no-browser",
        ]  # fmt: skip
    if task == "tensorboard":
        return [
            str(scripts / "python"), "-m", "tensorboard.main", f"--logdir={RUNS}",
            f"--host={host}", f"--port={port['TENSORBOARD_PORT']}",
        ]  # fmt: skip
    return [os.environ.get("SHELL", "bash")]


def prepare(task: str) -> None:
    groups, libraries = NEEDS[task]
    set_up(groups, ["venv", "compiler"], ROOT / ".venv", os.environ.get("TORCH", ""))
    if libraries:
        command = [str(SCRIPTS / "python"), "tools/build.py", "-D", "TFK_TESTS=OFF"]
        subprocess.run(command, cwd=ROOT, check=True)


def environment_of(cpu: bool) -> dict[str, str]:
    """The environment of this process with `.venv` activated."""
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if cpu else {}
    return {**os.environ, **hidden, "PATH": path, "VIRTUAL_ENV": str(ROOT / ".venv")}


def command_of(task: str, cpu: bool, is_local: bool, host: str) -> tuple[list[str], dict[str, str]]:
    """Returns what to run, and its environment; prepares `.venv` where that is used."""
    if not is_local and has_compose():
        gpu = not cpu and gives_gpus()
        return in_container(task, gpu), {**os.environ, "UID": str(os.getuid())}
    prepare(task)
    return local(task, host), environment_of(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description="Open a shell, Jupyter or TensorBoard.")
    parser.add_argument("task", choices=SERVICES)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("--local", action="store_true", help="from .venv, without a container")
    parser.add_argument("--host", default="127.0.0.1", help="the address of a local server")
    arguments = parser.parse_args()
    try:
        command, environment = command_of(
            arguments.task, arguments.cpu, arguments.local, arguments.host
        )
    except (SetupError, subprocess.CalledProcessError) as error:
        sys.exit(f"[setup] {error}")
    say(" ".join(command))
    os.chdir(ROOT)
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
