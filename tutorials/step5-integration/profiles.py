# SPDX-License-Identifier: MIT
"""Profiles a step of each rung's model, and writes `profile_cpu.json` or `profile_cuda.json`.

.venv/bin/python tutorials/step5-integration/profiles.py [KIND [LAYERS WIDTH SEQUENCES TOKENS FILE]]
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
from pathlib import Path

import compiled
import cpu2_extension
import cpu3_fused
import frame
import torch

from transformer_kernels._processor import cpu_name

RESULTS = compiled.HERE.parent / "results"
CHANGES = {
    "1_stock": lambda _model, _tokens: None,
    "2_extension": cpu2_extension.put_in,
    "3_fused": cpu3_fused.put_in,
}


def main(arguments: list[str]) -> None:
    place = frame.CUDA if arguments[:1] == ["cuda"] else frame.CPU
    kind = place.device
    layers, width, sequences, length = map(int, arguments[1:5]) if arguments[1:] else place.sizes
    importlib.import_module(f"{kind}2_extension").load()
    found = {}
    for rung, change in CHANGES.items():
        model = frame.stock(layers, width).to(place.device, place.dtype)
        tokens = torch.randint(0, model.config.vocab_size, (sequences, length), device=kind)
        change(model, tokens)
        frame.step(model, tokens)
        counted = frame.counters(model, tokens, place)
        found[kind + rung] = {k: round(v, 2) for k, v in counted.items()}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    kept = {
        "machine": f"{cpu_name()}, {os.cpu_count()} cores" if kind == "cpu" else place.name(),
        "date": today,
        "steps": {compiled.HERE.name: found},
    }
    path = Path(arguments[5]) if arguments[1:] else RESULTS / f"profile_{kind}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
