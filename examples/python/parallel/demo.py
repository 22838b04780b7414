# SPDX-License-Identifier: MIT
"""Trains the model of train.py in one process and in two, on a CPU, and compares: losses, what each
rank holds and sends, a checkpoint that another number of ranks reads, and a rank that dies.

    python examples/python/parallel/demo.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from transformer_kernels.measure.table import box

HOST = "127.0.0.1"
TRAIN = Path(__file__).with_name("train.py")
CLOSE = 1e-3  # sums in another order, over twelve steps in float32


def meeting() -> TCPStore:
    """Where ranks find one another while it lives, at a port that no other program has."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


def started(store: TCPStore, ranks: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """The processes of train.py, with the variables that torchrun would set; it would also end all
    of them as soon as one dies."""
    settings = {
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks),
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, str(TRAIN), *map(str, arguments)],
            env={**os.environ, **settings, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def run(title: str, report: Path, ranks: int, *arguments: object) -> dict[str, Any]:
    """The figures of a run."""
    print(f"{title} ...", flush=True)
    store = meeting()
    processes = started(store, ranks, *arguments, "--report", report)
    errors = [process.communicate()[1] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"{title} failed:\n{''.join(errors)}")
    return {"title": title, **json.loads(report.read_text())}


def lose_a_rank() -> str:
    """Says what the other rank raises when one dies."""
    print("Two ranks, of which one dies ...", flush=True)
    store = meeting()
    stays, dies = started(store, 2, "--way", "tensor", "--leave-at", "1")
    dies.communicate()
    begin = time.monotonic()
    errors = stays.communicate(timeout=300)[1]
    if not stays.returncode:
        sys.exit("rank 0 went on without rank 1")
    said = [line for line in errors.splitlines() if "Error" in line]
    seconds = time.monotonic() - begin
    return f"rank 0 raised after {seconds:.1f} s: {said[-1][:120] if said else errors[-120:]}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = folder / "checkpoint"
        runs = [
            run("One process", folder / "one", 1, "--way", "one"),
            run("Tensor parallel", folder / "tensor", 2, "--way", "tensor", "--save", saved),
            run("FSDP2", folder / "fsdp", 2, "--way", "fsdp"),
            run("Its checkpoint, read by one", folder / "load", 1, "--way", "tensor",
                "--load", saved),
        ]  # fmt: skip
    expected = runs[0]["losses"]
    body, far = [], []
    for found in runs:
        losses = found["losses"]
        apart = max(abs(a - b) for a, b in zip(losses, expected[-len(losses) :], strict=True))
        far += [found["title"]] if apart > CLOSE else []
        body.append([
            found["title"], str(found["ranks"]), f"{losses[0]:.5f}", f"{losses[-1]:.5f}",
            f"{apart:.1e}", f"{found['held'] / 2**20:.2f}", f"{found['sent'] / 2**20:.2f}",
        ])  # fmt: skip
    headings = (
        ("Way", 28), ("ranks", 5), ("first loss", 10), ("last loss", 10), ("apart", 8),
        ("MiB held", 8), ("MiB sent", 8),
    )  # fmt: skip
    print(box("A LLAMA ON ONE AND TWO RANKS (CPU, gloo)",
              "held: parameters of a rank; sent: by a rank in a step", headings, body))  # fmt: skip
    print(lose_a_rank())
    if far:
        sys.exit(f"other losses than one process has: {', '.join(far)}")


if __name__ == "__main__":
    main()
