# SPDX-License-Identifier: MIT
"""Profiles a step of each rung's model, and writes `tutorials/results/profile.json`.

.venv/bin/python tutorials/step5-integration/profiles.py [LAYERS WIDTH SEQUENCES TOKENS FILE]
"""

from __future__ import annotations

import datetime
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

RESULTS = compiled.HERE.parent / "results" / "profile.json"
CHANGES = {
    "cpu1_stock": lambda _model, _tokens: None,
    "cpu2_extension": cpu2_extension.put_in,
    "cpu3_fused": cpu3_fused.put_in,
}


def main(arguments: list[str]) -> None:
    layers, width, sequences, length = map(int, arguments[:4]) if arguments else frame.SIZES
    cpu2_extension.load()
    found = {}
    for rung, change in CHANGES.items():
        model = frame.stock(layers, width)
        tokens = torch.randint(0, model.config.vocab_size, (sequences, length))
        change(model, tokens)
        frame.step(model, tokens)
        found[rung] = {k: round(v, 2) for k, v in frame.counters(model, tokens).items()}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    kept = {
        "machine": f"{cpu_name()}, {os.cpu_count()} cores",
        "date": today,
        "steps": {compiled.HERE.name: found},
    }
    path = Path(arguments[4]) if arguments else RESULTS
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
