#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Copies the headers of PyTorch's stable ABI from an installed PyTorch into third_party/torch.

The bindings are built against these copies, so that a build needs no PyTorch. They are copied
unchanged, and only those that csrc/torch includes, directly or through another. Call it where the
bindings include a header that is not there yet, or need a newer PyTorch's:

    .venv/bin/python tools/torch_headers.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from check_layout import files
from setup_env import ROOT, cxx_compiler

TARGET = ROOT / "third_party" / "torch"
# The oldest PyTorch that the result loads into; cmake/torch.cmake compiles for the same.
OLDEST = "0x020a000000000000ULL"
LICENCES = {"LICENSE": "LICENSE", "third_party/FP16/LICENSE": "LICENSE.FP16"}
README = """# Headers of PyTorch {version}

`include/` holds the headers of PyTorch's stable ABI that `csrc/torch` includes, unchanged, under
PyTorch's licence ([LICENSE](LICENSE)); `Half.h` has code of FP16 ([LICENSE.FP16](LICENSE.FP16)).
A build with them needs no PyTorch, and the result loads into every PyTorch from 2.10 on.
`tools/torch_headers.py` wrote this folder.
"""


def included_headers(source: Path, include: Path) -> set[Path]:
    """The headers below `include` that a compiler reads for `source`."""
    command = [str(cxx_compiler()), "-std=c++20", "-M", f"-DTORCH_TARGET_VERSION={OLDEST}"]
    command += [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/include'}", f"-I{include}", str(source)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = (Path(word) for word in answer.replace("\\\n", " ").split())
    return {path.relative_to(include) for path in paths if path.is_relative_to(include)}


def main() -> int:
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        print("[torch] no PyTorch beside this interpreter, expected one to copy from")
        return 1
    include = Path(torch.submodule_search_locations[0]) / "include"
    sources = files(ROOT, ".cpp", under="csrc/torch")
    headers = set[Path]().union(*(included_headers(source, include) for source in sources))
    shutil.rmtree(TARGET, ignore_errors=True)
    for header in sorted(headers):
        copy = TARGET / "include" / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(include / header, copy)
    distribution = importlib.metadata.distribution("torch")
    for name, copy_name in LICENCES.items():
        text = distribution.read_text(f"licenses/{name}")
        (TARGET / copy_name).write_text(str(text))
    version = distribution.version.partition("+")[0]
    (TARGET / "README.md").write_text(README.format(version=version))
    print(f"[torch] {len(headers)} headers of PyTorch {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
