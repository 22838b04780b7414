# SPDX-License-Identifier: MIT
"""`make jupyter` and `make tensorboard` start real servers: a page loads, a notebook's cell runs,
the scalars of a training run appear."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dev
from transformer_kernels.bench import models, tracking, training

SECONDS = 120.0  # for a server to answer on a busy machine
HOST = "127.0.0.1"
NOTEBOOK = "notebooks/flashattention_demo.ipynb"


def free_port() -> int:
    """A port that nobody listens at. It is none of those from 32768 up that the system gives away,
    so that no other test's server or client has it before this one's server does."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise AssertionError("none of a hundred ports is free")


def get(url: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:
        return bytes(answer.read())


@contextlib.contextmanager
def serving(task: str, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Starts a server by the command of `tools/dev.py`; gives its address once the page loads."""
    port = free_port()
    monkeypatch.setenv(
        {"jupyter": "JUPYTER_PORT", "tensorboard": "TENSORBOARD_PORT"}[task], str(port)
    )
    address = f"http://{HOST}:{port}"
    command = dev.local(task, HOST, Path(sys.executable).parent)
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                get(address + page)
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(SECONDS)


def test_scalars_of_a_training_run_appear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    batch = torch.randn(4, 8)
    task = models.Task(
        model="line", data="noise", build=lambda _: torch.nn.Linear(8, 8),
        batches=lambda: iter([batch] * 3),
        loss_of=lambda model, x: (model(x) - x).square().mean(), accuracy_of=lambda _: 0.5,
        recipe=training.Recipe(3, 1e-3),
    )  # fmt: skip
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda _: None)
    row = models.run(task, ["ours"], torch.device("cpu"), log=tmp_path / "runs")["ours"].row
    monkeypatch.setattr(dev, "RUNS", tmp_path / "runs")
    with serving("tensorboard", "/", monkeypatch, tmp_path) as address:
        assert b"<title>TensorBoard</title>" in get(address + "/")
        question = urllib.parse.urlencode({"run": "line-ours", "tag": "loss"})
        scalars = f"{address}/data/plugin/scalars/scalars?{question}"
        deadline = time.monotonic() + SECONDS
        while (found := answered(scalars)) is None and time.monotonic() < deadline:
            time.sleep(0.1)  # the server reads the folder after it has begun to answer
        assert found is not None
    assert [step for _, step, _ in found] == [1, 2, 3]
    assert found[-1][2] == pytest.approx(row.loss, rel=1e-6)


def answered(url: str) -> Any:
    try:
        return json.loads(get(url))
    except OSError:
        return None


def test_a_page_loads_and_a_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab")
    websocket = importlib.import_module("websocket")
    token = uuid.uuid4().hex
    monkeypatch.setenv("JUPYTER_TOKEN", token)
    with serving("jupyter", f"/api/status?token={token}", monkeypatch, tmp_path) as address:
        assert b"JupyterLab" in get(f"{address}/lab?token={token}")
        with pytest.raises(OSError, match="403"):
            get(f"{address}/api/contents")  # nobody gets in without the token
        contents = json.loads(get(f"{address}/api/contents/{NOTEBOOK}?token={token}"))
        cells = [c["source"] for c in contents["content"]["cells"] if c["cell_type"] == "code"]
        kernel = json.loads(get(f"{address}/api/kernels?token={token}", b"{}"))["id"]
        url = f"{address}/api/kernels/{kernel}/channels?token={token}"
        channel = websocket.create_connection(url.replace("http", "ws", 1), timeout=SECONDS)
        assert execute(channel, cells[0]) == "ok"
        assert execute(channel, "tfk.not_there") == "error"
        channel.close()


def execute(channel: Any, code: str) -> str:
    """Runs code in a kernel by Jupyter's protocol; returns the status of the kernel's reply."""
    asked = uuid.uuid4().hex
    header = {
        "msg_id": asked, "msg_type": "execute_request", "version": "5.3",
        "session": "test", "username": "test", "date": "",
    }  # fmt: skip
    message = {
        "header": header, "parent_header": {}, "metadata": {}, "channel": "shell",
        "content": {"code": code, "silent": False, "allow_stdin": False},
    }  # fmt: skip
    channel.send(json.dumps(message))
    while True:
        reply = json.loads(channel.recv())
        mine = reply["parent_header"].get("msg_id") == asked
        if mine and reply["msg_type"] == "execute_reply":
            return str(reply["content"]["status"])
