#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the files of benchmarks/results/ in the form of `schema.to_text`, with a row a line.

format_results.py            rewrites them; no figure changes
format_results.py --check    fails where a file differs from what would be written
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from setup_env import ROOT
from transformer_kernels.measure.schema import to_text

RESULTS = ROOT / "benchmarks" / "results"


def differing(folder: Path) -> dict[Path, str]:
    """The files that have another form, and the text that they should have."""
    read = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    formed = {path: to_text(json.loads(text)) for path, text in read.items()}
    return {path: text for path, text in formed.items() if text != read[path]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="rewrite nothing")
    arguments = parser.parse_args()
    found = differing(RESULTS)
    for path, text in found.items():
        if arguments.check:
            print(f"{path.relative_to(ROOT)}: has another form, expected a row a line")
        else:
            path.write_text(text, encoding="utf-8")
    print(f"[results] {len(found)} files {'differ' if arguments.check else 'rewritten'}")
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
