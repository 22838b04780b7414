#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the commands and the Python examples of README and docs, so that they keep working.

bash runs each line of a fenced `console` block that starts with "$ ", and the lines that follow a
backslash; the interpreter of .venv runs a `python` block. Each block is a fresh process at the root
of the repository. A block after the line `<!-- not run: REASON -->` is skipped, and the reason is
printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build import SCRIPTS
from check_layout import files
from setup_env import ROOT

FENCE = re.compile(r"^```(\S*)(?:\s.*)?$")  # also a directive with an argument
SKIP = re.compile(r"^<!-- not run: (.+) -->$")


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    text: str
    skipped_because: str | None

    def command(self) -> list[str]:
        if self.language == "python":
            return [str(SCRIPTS / "python"), "-c", self.text]
        lines: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                lines.append(line[2:])
            elif lines and lines[-1].endswith("\\"):
                lines.append(line)
        return ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]


def blocks(path: Path, root: Path = ROOT) -> Iterator[Block]:
    reason: str | None = None
    opened: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if opened is not None:
            if fence:
                start, language, text = opened
                if language in ("console", "python"):
                    place = f"{path.relative_to(root)}:{start}"
                    yield Block(place, language, "\n".join(text), reason)
                opened, reason = None, None
            else:
                opened[2].append(line)
        elif fence:
            opened = (number, fence[1], [])
        elif skip := SKIP.match(line):
            reason = skip[1]
        elif line.strip():
            reason = None


def run(block: Block) -> bool:
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])
    start = time.monotonic()
    result = subprocess.run(
        block.command(),
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = "ok" if result.returncode == 0 else f"FAILED ({result.returncode})"
    print(f"[docs] {block.place}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    if result.returncode != 0:
        print(block.text, result.stdout[-2000:], result.stderr[-2000:], sep="\n", flush=True)
    return result.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the commands that the documents show.")
    parser.add_argument(
        "documents", nargs="*", type=Path, help="default: README, CONTRIBUTING, docs, tutorials"
    )
    arguments = parser.parse_args()
    pages = [*files(ROOT, ".md", under="docs"), *files(ROOT, ".md", under="tutorials")]
    shown = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]
    documents = [path.resolve() for path in arguments.documents] or shown
    failed = 0
    for block in (block for document in documents for block in blocks(document)):
        if block.skipped_because is not None:
            print(f"[docs] {block.place}: not run: {block.skipped_because}")
        else:
            failed += not run(block)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
