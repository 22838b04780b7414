#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks Dockerfile and compose.yml, and builds the image of the CPU as far as the machine can.

hadolint and the schema of compose.yml need no engine. The image is built by buildah, which needs no
daemon; where no registry answers, the base image is Debian's stable release from its package
mirror, made by mmdebstrap. The last lines say what was proven, and what was only checked.
--lint builds nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from build import SCRIPTS
from setup_env import ROOT

WORK = ROOT / "build" / "containers"
IMAGE = "localhost/transformer-kernels:cpu"
CONTAINER = "transformer-kernels-trial"
LOCAL_BASE = "localhost/debian:mirror"
RELEASE = "bookworm"  # of the base that Dockerfile names
# The build is handed what pip of this machine is told, at these places.
HANDED_IN = {"PIP_CERT": "/run/host/certificates.pem", "PIP_FIND_LINKS": "/run/host/wheels"}
PORTS = {"jupyter": 8888, "jupyter-cpu": 8888, "tensorboard": 6006}
SHELLS = ("kernel-fusion-dev", "kernel-fusion-cpu")


def succeeds(*command: str | Path, quiet: bool = False) -> bool:
    pipe = subprocess.DEVNULL if quiet else None
    parts = [str(part) for part in command]
    # A container that only chroot isolates shares the machine's network, and needs no privileges.
    environment = {"BUILDAH_ISOLATION": "chroot", **os.environ}
    done = subprocess.run(parts, cwd=ROOT, stdout=pipe, stderr=pipe, env=environment, check=False)
    return done.returncode == 0


# --- what needs no engine -----------------------------------------------------------------------


def compose_problems(compose: dict[str, object], devcontainer: dict[str, object]) -> list[str]:
    """Finds what the schema cannot know: services, their ports, and the devcontainer's service."""
    services = compose["services"]
    assert isinstance(services, dict)
    problems = [f"no service {n}" for n in (*PORTS, *SHELLS) if n not in services]
    for name, port in PORTS.items():
        published = [str(p) for p in services.get(name, {}).get("ports", [])]
        if not any(p.startswith("127.0.0.1:") and p.endswith(f":{port}") for p in published):
            problems.append(f"{name} publishes {published}, expected {port} on 127.0.0.1")
    if devcontainer["service"] not in services:
        problems.append(f"devcontainer.json names the service {devcontainer['service']}")
    return problems


def lint() -> list[str]:
    checks: dict[str, list[str | Path]] = {
        "hadolint Dockerfile": [SCRIPTS / "hadolint", "Dockerfile"],
        "schema of compose.yml": [
            SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yml",
        ],
    }  # fmt: skip
    failed = [what for what, command in checks.items() if not succeeds(*command)]
    compose = yaml.safe_load((ROOT / "compose.yml").read_text())
    devcontainer = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    return failed + compose_problems(compose, devcontainer)


# --- the image ----------------------------------------------------------------------------------


def local_base() -> bool:
    """Makes the base image from Debian's packages; buildah keeps it from one run to the next."""
    if succeeds("buildah", "inspect", "--type", "image", LOCAL_BASE, quiet=True):
        return True
    archive = WORK / "base.tar"
    if not succeeds("mmdebstrap", "--quiet", "--variant=minbase", RELEASE, archive):
        return False
    recipe = WORK / "base.Dockerfile"
    recipe.write_text(f"FROM scratch\nADD {archive.name} /\n")
    made = succeeds("buildah", "build", "-q", "-t", LOCAL_BASE, "-f", recipe, WORK)
    archive.unlink()
    return made


def build(base: str | None) -> bool:
    options: list[str] = [] if base is None else ["--build-arg", f"CPU_BASE={base}"]
    for name, inside in HANDED_IN.items():
        if outside := os.environ.get(name):
            options += ["--volume", f"{outside}:{inside}:ro", "--build-arg", f"{name}={inside}"]
    return succeeds("buildah", "build", "--target", "cpu", "-t", IMAGE, *options, ".")


# A new container has to manage this, with the checkout's package and libraries mounted.
TRIAL = """
import getpass, torch, transformer_kernels as tfk
assert getpass.getuser() == "developer"
x = torch.randn(8, 64)
torch.testing.assert_close(tfk.functional.softmax(x, -1, backend="cpu"), torch.softmax(x, -1))
print("[containers] softmax in the image, as", getpass.getuser(), "with PyTorch", torch.__version__)
"""


def runs() -> bool:
    """Runs a kernel in a container of the image, which is removed with it."""
    package = f"{ROOT / 'transformer_kernels'}:/trial/transformer_kernels:ro"
    succeeds("buildah", "rm", CONTAINER, quiet=True)  # one of a run that was cut off
    started = succeeds("buildah", "from", "--name", CONTAINER, "--pull-never", IMAGE)
    done = started and succeeds(
        "buildah", "run", "--volume", package, "--env", "PYTHONPATH=/trial", CONTAINER, "--",
        "/workspace/.venv/bin/python", "-c", TRIAL,
    )  # fmt: skip
    succeeds("buildah", "rm", CONTAINER, quiet=True)
    succeeds("buildah", "rmi", IMAGE, quiet=True)
    return done


def prove() -> tuple[list[str], list[str]]:
    """Returns what the machine could prove of the image, and what failed."""
    if shutil.which("buildah") is None:
        return [], []
    registry = build(None)
    if not registry:
        if not (shutil.which("mmdebstrap") and local_base()):
            return [], []
        if not build(LOCAL_BASE):
            return [], ["buildah build --target cpu"]
    base = "of the registry" if registry else "made by mmdebstrap"
    if not runs():
        return [], ["the kernels in the image"]
    return [f"the image cpu, built by buildah on a base {base}; the kernels run in it"], []


def main() -> int:
    failed = lint()
    if sys.argv[1:] == ["--lint"]:
        print(*failed, sep="\n", end="")
        return 1 if failed else 0
    WORK.mkdir(parents=True, exist_ok=True)
    proven, broken = ([], []) if failed else prove()
    for problem in failed + broken:
        print(f"[containers] FAILED: {problem}", file=sys.stderr)
    print("[containers] proven:", "; ".join(proven) or "nothing, for want of an engine and a base")
    only = "compose.yml, the image cuda" + ("" if proven else ", the image cpu")
    print(f"[containers] only checked by hadolint and the schema: {only}")
    return 1 if failed + broken else 0


if __name__ == "__main__":
    sys.exit(main())
