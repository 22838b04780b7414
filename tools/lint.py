#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every static check, or one by name; --fix rewrites what a formatter can."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from build import SCRIPTS, cmake_options
from check_layout import cxx_sources
from setup_env import ROOT

TIDY = ROOT / "build" / "tidy"
# Sources that clang-tidy found clean, by what they were then: empty files, in the user's cache.
CLEAN = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "transformer_kernels"
    / "tidy"
)


def succeeds(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode == 0


def clang_format(fix: bool) -> bool:
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    return succeeds(SCRIPTS / "clang-format", *mode, *cxx_sources(ROOT))


def ruff_format(fix: bool) -> bool:
    return succeeds(SCRIPTS / "ruff", "format", "-q", *([] if fix else ["--diff"]))


def ruff_check(fix: bool) -> bool:
    return succeeds(SCRIPTS / "ruff", "check", "-q", *(["--fix"] if fix else []))


def mypy(fix: bool) -> bool:  # noqa: ARG001
    return succeeds(SCRIPTS / "mypy")


def layout(fix: bool) -> bool:  # noqa: ARG001
    return succeeds(SCRIPTS / "python", "tools/check_layout.py")


def words(fix: bool) -> bool:  # noqa: ARG001
    return succeeds(SCRIPTS / "python", "tools/check_words.py")


def results(fix: bool) -> bool:
    return succeeds(SCRIPTS / "python", "tools/format_results.py", *([] if fix else ["--check"]))


def containers(fix: bool) -> bool:  # noqa: ARG001
    return succeeds(SCRIPTS / "python", "tools/containers.py", "--lint")


def requirements(fix: bool) -> bool:
    check = [] if fix else ["--check"]
    return succeeds(SCRIPTS / "python", "tools/render_requirements.py", *check)


def one_command_a_source(database: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Keeps one compile command per source: a kernel is compiled once for each instruction set."""
    first: dict[str, dict[str, str]] = {}
    for entry in database:
        if Path(entry["file"]).is_relative_to(ROOT / "csrc"):
            first.setdefault(entry["file"], entry)
    return list(first.values())


def clang_tidy(fix: bool) -> bool:  # noqa: ARG001
    options = [
        *cmake_options(),
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        "-DTFK_CUDA=OFF",
        "-DTFK_ISAS=all",
        f"-DTFK_LIBRARY_DIR={TIDY / 'lib'}",
    ]
    configure = ["-S", str(ROOT), "-B", str(TIDY), "-G", "Ninja", "--log-level=WARNING"]
    if not succeeds(SCRIPTS / "cmake", *configure, *options):
        return False
    database = TIDY / "compile_commands.json"
    entries = one_command_a_source(json.loads(database.read_text()))
    database.write_text(json.dumps(entries))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(tidy_one, entries)))


def tidy_one(entry: Mapping[str, str]) -> bool:
    """Prints findings only: clang-tidy's output also counts those it suppressed. A source that was
    clean, with all that it includes, is not looked at again."""
    clean = CLEAN / digest_of(entry)
    if clean.exists():
        return True
    command = [str(SCRIPTS / "clang-tidy"), "-p", str(TIDY), "--quiet", entry["file"]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(result.stdout or result.stderr, flush=True)
        return False
    CLEAN.mkdir(parents=True, exist_ok=True)
    clean.touch()
    return True


def digest_of(entry: Mapping[str, str]) -> str:
    """Names all that clang-tidy's findings in a source follow from: its version and checks, and the
    source with its headers and comments (NOLINT), wherever the folder lies."""
    compiler, *options = shlex.split(entry["command"])
    at = options.index("-o")
    del options[at : at + 2]
    options[options.index("-c")] = "-E"
    folder = entry["directory"]
    run = [compiler, *options, "-C", "-P"]
    text = subprocess.run(run, cwd=folder, capture_output=True, check=True).stdout
    of_folder = shlex.join(options).replace(str(ROOT), "")
    parts = [tidy_version(), (ROOT / ".clang-tidy").read_bytes(), of_folder.encode(), text]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def tidy_version() -> bytes:
    return subprocess.run(
        [SCRIPTS / "clang-tidy", "--version"], capture_output=True, check=True
    ).stdout


CHECKS: dict[str, Callable[[bool], bool]] = {
    "layout": layout,
    "words": words,
    "results": results,
    "requirements": requirements,
    "containers": containers,
    "clang-format": clang_format,
    "ruff-format": ruff_format,
    "ruff": ruff_check,
    "mypy": mypy,
    "clang-tidy": clang_tidy,
}
FIXABLE = ("results", "requirements", "clang-format", "ruff-format", "ruff")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CHECKS, []], help="which checks")
    parser.add_argument("--fix", action="store_true", help="rewrite what a formatter can")
    arguments = parser.parse_args()
    names = arguments.names or (FIXABLE if arguments.fix else list(CHECKS))
    failed = []
    for name in names:
        start = time.monotonic()
        passed = CHECKS[name](arguments.fix)
        verdict = "ok" if passed else "FAILED"
        print(f"[lint] {name}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
        if not passed:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
