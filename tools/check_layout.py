#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds the repository to the layout that docs/design.md describes.

Every rule is a function from the tree to its violations; each violation names the place and what to
do.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup_env import ROOT, cxx_compiler

MOST_LINES = 600
MOST_COLUMNS = 100
MOST_DECISION_LINES = 80  # figures and trials belong in docs/notes
MOST_ROOT_ENTRIES = 21
# Docker, conda, pip and Binder look for these at the root, and nowhere else.
AT_THE_ROOT = {"Dockerfile", "compose.yml", "environment.yml", "requirements.txt"}

CXX_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
CODE_SUFFIXES = (*CXX_SUFFIXES, ".py", ".cmake", ".sh")
MADE_BY_TOOLS = {
    "__pycache__", "_build", "_generated", "build", "dist", "lib", "node_modules",
}  # fmt: skip
OTHERS = "third_party"  # unchanged copies, which keep their own rules

# A family includes its own folder, core/, public headers, and families of a lower rank.
FAMILY_RANKS = {
    "pointwise": 1, "rope": 1,
    "softmax": 2, "norm": 2, "loss": 2, "embedding": 2, "attention": 2, "linear": 2, "graph": 2,
    "mlp": 3, "linear_loss": 3, "attention_block": 3,
    "moe": 4, "decode": 4, "optimizer": 4,
}  # fmt: skip

# The least that a family has: a file whose path starts and ends like this.
FAMILY_ROOMS = (
    ("csrc/include/transformer_kernels/{family}/", (".h",)),
    ("csrc/{family}/", (".cpp",)),
    ("csrc/{family}/", ("_isa.cpp", "cpu.cpp")),
    ("csrc/{family}/", (".cu",)),
    ("csrc/torch/{family}/", (".cpp",)),
    ("transformer_kernels/ops/{family}/", (".py",)),
    ("tests/cpp/{family}/", ("_test.cpp",)),
    ("tests/python/{family}/", (".py",)),
    ("transformer_kernels/bench/cases/{family}", (".py",)),
)
# Families that are composed of others, and the rooms of kernels that they lack.
CUDA_ROOM = ("csrc/{family}/", (".cu",))
KERNEL_ROOMS = (("csrc/{family}/", ("_isa.cpp", "cpu.cpp")), CUDA_ROOM)
BINDING_ROOM = ("csrc/torch/{family}/", (".cpp",))
PYTHON_ROOMS = tuple(r for r in FAMILY_ROOMS if not r[0].startswith(("csrc/", "tests/cpp/")))
COMPOSED = {
    "linear_loss": (*KERNEL_ROOMS, BINDING_ROOM),
    "attention_block": (*KERNEL_ROOMS, BINDING_ROOM),
    "mlp": (*KERNEL_ROOMS, *PYTHON_ROOMS),  # a part of linear in Python
}
# Each of these folders holds the families' folders, and the others that are named here.
FAMILY_TREES = {
    "csrc": {"core", "fpga", "include", "torch"},
    "csrc/include/transformer_kernels": {"fpga"},
    "csrc/torch": {"fpga"},
    "transformer_kernels/ops": {"fpga"},
    "tests/cpp": {"core", "emulation", "fpga"},
}

# A module of the package imports modules of its own folder and of lower ranks.
PYTHON_RANKS = {
    "_cache": 0, "_completion": 0, "_cuda_graph": 0, "_errors": 0, "_extras": 0, "_lazy": 0,
    "_torch": 0, "_version": 0,
    "_library": 1, "_names": 1,
    "_metadata": 2, "_processor": 2, "fpga": 2, "info": 2,
    "_times": 3,
    "doctor": 4, "ops": 4,
    "functional": 5, "levels": 5,
    "nn": 6, "optim": 6, "testing": 6,
    "measure": 7,
    "decode": 8, "fuse": 8, "hardware": 8, "profile": 8,
    "integrations": 9, "models": 9, "plans": 9, "tune": 9,
    "bench": 10, "compat": 10, "generation": 10, "parallel": 10,
    "serving": 11, "tutorial": 11, "workbench": 11,
    "__init__": 12,
    "demo": 13,
    "cli": 14,
    "__main__": 15,
}  # fmt: skip


def files(root: Path, *suffixes: str, under: str = "") -> list[Path]:
    """Files of the working tree, without those that tools make or others wrote, in a stable
    order."""
    left_out = {*MADE_BY_TOOLS, OTHERS}
    found = []
    for folder, names, leaves in os.walk(root / under):
        names[:] = sorted(n for n in names if n not in left_out and not n.startswith("."))
        found += [Path(folder) / leaf for leaf in sorted(leaves) if leaf.endswith(suffixes)]
    return found


def cxx_sources(root: Path) -> list[Path]:
    return files(root, *CXX_SUFFIXES)


def families(root: Path) -> list[str]:
    """The names of folders that hold a family's files in any tree."""
    found: set[str] = set()
    for tree, others in FAMILY_TREES.items():
        inside = files(root, *CXX_SUFFIXES, ".py", under=tree)
        parts = (path.relative_to(root / tree).parts for path in inside)
        found |= {part[0] for part in parts if len(part) > 1} - others
    return sorted(found)


def rank_of(family: str) -> int:
    return FAMILY_RANKS.get(family, 0)


def mirror(root: Path) -> Iterator[str]:
    paths = [path.relative_to(root).as_posix() for path in files(root, *CODE_SUFFIXES)]
    for family in families(root):
        if family not in FAMILY_RANKS:
            yield f"{family}: has no rank in FAMILY_RANKS"
        for room, suffixes in (r for r in FAMILY_ROOMS if r not in COMPOSED.get(family, ())):
            start = room.format(family=family)
            if not any(path.startswith(start) and path.endswith(suffixes) for path in paths):
                wanted = " or ".join(f"{start}*{suffix}" for suffix in suffixes)
                yield f"{wanted}: missing, expected one because {family} is a family"


def includes(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match[1]


def include_rules(root: Path) -> Iterator[str]:
    csrc = root / "csrc"
    known = set(families(root))
    for path in files(root, *CXX_SUFFIXES, under="csrc"):
        room = path.relative_to(csrc).parts[0]
        for number, include in includes(path):
            first = include.split("/")[0]
            where = f"{path.relative_to(root)}:{number}: includes {include}"
            if room != "torch" and first in ("torch", "ATen", "c10", "pybind11", "Python.h"):
                yield f"{where}; only csrc/torch may see PyTorch"
            if room == "include" and re.match(r"cuda|cub/|cooperative_groups|nv", include):
                yield f"{where}; public headers know no CUDA"
            if room == "include" and first in {*known, "core", "fpga", "torch"}:
                yield f"{where}; public headers include only public headers"
            if room in known and first in known - {room} and rank_of(first) >= rank_of(room):
                yield f"{where}; a family includes families of a lower rank than its own"
            if room == "fpga" and first in known:
                yield f"{where}; the array stands below the families"
            if room == "core" and first in {*known, "fpga"}:
                yield f"{where}; core/ knows no family"


def room_names(root: Path) -> Iterator[str]:
    for path in files(root, *CXX_SUFFIXES, under="csrc"):
        *folders, name = path.relative_to(root / "csrc").parts
        for folder in folders:
            if name.startswith(f"{folder}_"):
                yield f"{path.relative_to(root)}: repeats its folder, expected {name} without it"


def headers_compile_alone(root: Path) -> Iterator[str]:
    compiler = cxx_compiler()
    if compiler is None:
        yield "no C++ compiler, expected one to compile the public headers alone"
        return
    public = root / "csrc/include"
    options = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{public}"]

    def compile_alone(header: Path) -> str | None:
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
            source.write(f'#include "{header.relative_to(public)}"\n')
            source.flush()
            command = [compiler, *options, source.name]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return None
        return f"{header.relative_to(root)}: does not compile alone\n{result.stderr}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(compile_alone, files(root, ".h", under="csrc/include")))
    yield from (verdict for verdict in verdicts if verdict is not None)


Module = tuple[str, ...]  # a module's name, without the package's


def imports(path: Path, package: Path) -> Iterator[tuple[int, Module]]:
    """Yields each import of the package's own modules, anywhere in the file: (line, module).

    Relative imports are resolved. The last name may be a module, or a name defined in one.
    """
    inside = path.relative_to(package).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            dotted = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                dotted = inside[: len(inside) - node.level + 1] + dotted
            elif dotted[:1] == (package.name,):
                dotted = dotted[1:]
            else:
                continue
            yield from ((node.lineno, (*dotted, alias.name)) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first, *parts = alias.name.split(".")
                if first == package.name:
                    yield node.lineno, tuple(parts)


def python_layers(root: Path) -> Iterator[str]:
    package = root / "transformer_kernels"
    for path in files(root, ".py", under="transformer_kernels"):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        if own not in PYTHON_RANKS:
            yield f"{path.relative_to(root)}: {own} has no rank in PYTHON_RANKS"
            continue
        found = ((n, name[0] if name else "__init__") for n, name in imports(path, package))
        places = {(n, name if name in PYTHON_RANKS else "__init__") for n, name in found}
        for number, other in sorted(places):
            if other != own and PYTHON_RANKS[other] >= PYTHON_RANKS[own]:
                beside = PYTHON_RANKS[other] == PYTHON_RANKS[own]
                where = "beside" if beside else "above"
                yield (
                    f"{path.relative_to(root)}:{number}: {own} imports {other}, "
                    f"which stands {where} it"
                )


def python_circles(root: Path) -> Iterator[str]:
    """Finds circles of imports. Imports for types and imports inside functions count too."""
    package = root / "transformer_kernels"
    modules: dict[Module, Path] = {}
    for path in files(root, ".py", under="transformer_kernels"):
        name = path.relative_to(package).with_suffix("").parts
        modules[name[:-1] if name[-1] == "__init__" else name] = path

    def module_of(name: Module) -> Module:
        while name and name not in modules:
            name = name[:-1]
        return name

    imported = {
        module: {module_of(name) for _, name in imports(path, package)} & {*modules} - {module}
        for module, path in modules.items()
    }
    told: set[Module] = set()
    for module in sorted(imported):
        way = way_back(module, imported)
        if way and not told & {*way}:
            told |= {*way}
            names = " -> ".join(modules[step].relative_to(root).as_posix() for step in way)
            yield f"{names}: a circle of imports"


def way_back(module: Module, imported: dict[Module, set[Module]]) -> list[Module]:
    """The shortest path from a module back to itself; empty where there is none."""
    ways, seen = [[module]], set[Module]()
    for way in ways:
        for step in sorted(imported[way[-1]] - seen):
            ways.append([*way, step])
            if step == module:
                return ways[-1]
        seen |= imported[way[-1]]
    return []


def sizes(root: Path) -> Iterator[str]:
    for path in files(root, *CODE_SUFFIXES):
        lines = path.read_text().splitlines()
        if len(lines) > MOST_LINES:
            yield f"{path.relative_to(root)}: {len(lines)} lines, expected at most {MOST_LINES}"
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_COLUMNS:
                yield (
                    f"{path.relative_to(root)}:{number}: {len(line)} columns, "
                    f"expected at most {MOST_COLUMNS}"
                )
    for path in sorted((root / "docs/decisions").glob("*.md")):
        count = len(path.read_text().splitlines())
        if count > MOST_DECISION_LINES:
            yield (
                f"{path.relative_to(root)}: {count} lines, expected at most {MOST_DECISION_LINES}"
            )


CXX_STATEMENT = re.compile(
    r"^(#\s*(include|define|if|endif)\b.*"
    r"|(return|if|for|while|auto|const|int|float|double|static|using|template|std::)\b.*[;{]"
    r"|[\w.:>\[\]()*-]+\s*([-+*/|&]?=|\().*;"
    r"|[{}]+;?)$"
)
PYTHON_STATEMENT = re.compile(
    r"^((import|from|return|raise|assert|del|def|class|if|for|while|with|print)\b[ (].*"
    r"|[\w.\[\]]+ = .*|[\w.]+\(.*\))$"
)


def is_python_code(text: str) -> bool:
    if not PYTHON_STATEMENT.match(text):
        return False
    try:
        ast.parse(text if not text.endswith(":") else f"{text} pass")
    except SyntaxError:
        return False
    return True


def comments(root: Path) -> Iterator[str]:
    todo = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
    for path in files(root, *CODE_SUFFIXES):
        python = path.suffix == ".py"
        mark = "//" if path.suffix in CXX_SUFFIXES else "#"
        for number, line in enumerate(path.read_text().splitlines(), 1):
            comment = line.strip()
            if not comment.startswith(mark):
                continue
            text = comment[len(mark) :].strip()
            where = f"{path.relative_to(root)}:{number}"
            if is_python_code(text) if python else mark == "//" and CXX_STATEMENT.match(text):
                yield f"{where}: commented-out code, expected none: {text}"
            if todo.search(text):
                yield f"{where}: an open end without a number, expected TODO(#123)"


# A path in back quotes is checked if it starts with one of these; wildcards and patterns are not.
ROOT_FOLDERS = (
    "assets", "benchmarks", "cmake", "csrc", "docs", "examples", "fpga", "tests", "tools",
    "transformer_kernels", "tutorials",
)  # fmt: skip
GENERATED = re.compile(r"^(docs/_|transformer_kernels/lib\b|benchmarks/results\b)")


def markdown_paths(root: Path) -> Iterator[str]:
    quoted = re.compile(r"`([\w./-]+/[\w./-]*)`")
    link = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
    for path in files(root, ".md"):
        text = path.read_text()
        for target in link.findall(text):
            local = "://" not in target and not target.startswith("mailto:")
            if local and not (path.parent / target).exists():
                yield f"{path.relative_to(root)}: links to {target}, which does not exist"
        for target in quoted.findall(text):
            checked = target.split("/")[0] in ROOT_FOLDERS and not GENERATED.match(target)
            if checked and not (root / target).exists():
                yield f"{path.relative_to(root)}: names {target}, which does not exist"


def root_entries(root: Path) -> Iterator[str]:
    free = {*MADE_BY_TOOLS, *AT_THE_ROOT, "report.html", "runs"}
    entries = [e.name for e in root.iterdir() if not e.name.startswith(".") and e.name not in free]
    if len(entries) > MOST_ROOT_ENTRIES:
        yield f"{len(entries)} entries at the root, expected at most {MOST_ROOT_ENTRIES}"


RULES: tuple[Callable[[Path], Iterator[str]], ...] = (
    mirror,
    include_rules,
    room_names,
    headers_compile_alone,
    python_layers,
    python_circles,
    sizes,
    comments,
    markdown_paths,
    root_entries,
)


def main() -> int:
    violations = [violation for rule in RULES for violation in rule(ROOT)]
    for violation in violations:
        print(violation)
    print(f"[layout] {len(RULES)} rules, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
