# SPDX-License-Identifier: MIT
"""The checker of containers names what is wrong, and builds the image as far as a machine can."""

from __future__ import annotations

import json
import re

import pytest
import yaml

import containers
import dev
from setup_env import REQUIREMENTS, ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yml").read_text())
DEVCONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def test_the_services_are_there_with_their_ports() -> None:
    assert containers.compose_problems(COMPOSE, DEVCONTAINER) == []


def test_a_port_open_to_the_network_and_a_missing_service_are_named() -> None:
    services = {**COMPOSE["services"], "jupyter": {"ports": ["8888:8888"]}}
    del services["kernel-fusion-cpu"]
    assert containers.compose_problems({"services": services}, DEVCONTAINER) == [
        "no service kernel-fusion-cpu",
        "jupyter publishes ['8888:8888'], expected 8888 on 127.0.0.1",
        "devcontainer.json names the service kernel-fusion-cpu",
    ]


def test_the_images_install_groups_that_exist_and_run_as_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"python3 tools/setup_env\.py (.*)", text)
    assert len(installs) == len(re.findall(r"^USER \$\{UID\}$", text, re.MULTILINE)) == 2
    for group in " ".join(installs).split():
        assert (REQUIREMENTS / f"{group}.txt").exists()
    for groups, _ in dev.NEEDS.values():
        assert set(groups) <= set(installs[0].split()) & set(installs[1].split())


@pytest.mark.parametrize(
    ("working", "has_base", "proven", "failed"),
    [
        ({None}, False, "on a base of the registry", None),
        ({containers.LOCAL_BASE}, True, "on a base made by mmdebstrap", None),
        (set(), False, None, None),  # neither a registry nor Debian's packages
        (set(), True, None, "buildah build --target cpu"),
    ],
)
def test_an_image_is_built_on_the_base_that_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
    working: set[str | None],
    has_base: bool,
    proven: str | None,
    failed: str | None,
) -> None:
    monkeypatch.setattr(containers.shutil, "which", lambda name: name)
    monkeypatch.setattr(containers, "build", lambda base: base in working)
    monkeypatch.setattr(containers, "local_base", lambda: has_base)
    monkeypatch.setattr(containers, "runs", lambda: True)
    done, problems = containers.prove()
    assert (proven is None) == (done == [])
    assert all(str(proven) in line for line in done)
    assert problems == ([] if failed is None else [failed])


def test_without_an_engine_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers.shutil, "which", lambda _: None)
    assert containers.prove() == ([], [])
