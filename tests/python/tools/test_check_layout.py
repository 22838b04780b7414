# SPDX-License-Identifier: MIT
"""Each rule is run on a tree that breaks it and on one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import check_layout
import new_op

Rule = Callable[[Path], Iterator[str]]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def violations(rule: Rule, root: Path, files: dict[str, str]) -> list[str]:
    return list(rule(tree(root, files)))


def test_a_family_has_all_its_rooms(tmp_path: Path) -> None:
    new_op.lay(tmp_path, "norm", "group_norm")
    assert list(check_layout.mirror(tmp_path)) == []
    (tmp_path / "csrc/norm/group_norm_cuda.cu").unlink()
    assert [v.split(":")[0] for v in check_layout.mirror(tmp_path)] == ["csrc/norm/*.cu"]
    kernels = tmp_path / "csrc/norm/sm90/forward.cu"
    kernels.parent.mkdir()
    kernels.touch()
    assert list(check_layout.mirror(tmp_path)) == []


def test_a_family_has_a_rank(tmp_path: Path) -> None:
    new_op.lay(tmp_path, "probe", "one")
    assert list(check_layout.mirror(tmp_path)) == ["probe: has no rank in FAMILY_RANKS"]


@pytest.mark.parametrize("tree", check_layout.FAMILY_TREES)
def test_no_room_stands_alone(tmp_path: Path, tree: str) -> None:
    found = violations(check_layout.mirror, tmp_path, {f"{tree}/norm/x.cpp": ""})
    assert found
    assert all("because norm is a family" in violation for violation in found)


HEADER = "csrc/include/transformer_kernels/norm/layer_norm.h"


@pytest.mark.parametrize(
    ("place", "include"),
    [
        ("csrc/norm/layer_norm.cpp", "torch/all.h"),
        ("csrc/core/check.h", "norm/problem.h"),
        ("csrc/norm/layer_norm.cpp", "softmax/problem.h"),
        ("csrc/norm/layer_norm.cpp", "mlp/mlp.h"),
        (HEADER, "cuda_runtime.h"),
        (HEADER, "core/check.h"),
    ],
)
def test_a_forbidden_include(tmp_path: Path, place: str, include: str) -> None:
    others = {f"csrc/{family}/{family}.h": "" for family in ("softmax", "mlp")}
    sources = {HEADER: "", **others, place: f"#pragma once\n#include <{include}>\n"}
    found = violations(check_layout.include_rules, tmp_path, sources)
    assert len(found) == 1
    assert f"{place}:2: includes {include}" in found[0]


def test_allowed_includes(tmp_path: Path) -> None:
    sources = {
        HEADER: "#include <cstdint>\n",
        "csrc/pointwise/ops.h": "",
        "csrc/norm/layer_norm.cpp": '#include "norm/problem.h"\n#include "core/check.h"\n',
        "csrc/norm/gated_norm.h": '#include "pointwise/ops.h"\n',
        "csrc/torch/convert.h": "#include <torch/csrc/stable/tensor.h>\n",
    }
    assert violations(check_layout.include_rules, tmp_path, sources) == []


def test_a_room_is_named_once(tmp_path: Path) -> None:
    twice = ["csrc/attention/sm80/attention_tile.cuh", "csrc/norm/norm_plan.h"]
    once = ["csrc/attention/sm80/tile.cuh", "csrc/norm/plan.h", "csrc/norm/norm.cpp"]
    found = violations(check_layout.room_names, tmp_path, dict.fromkeys([*twice, *once], ""))
    assert [violation.split(":")[0] for violation in found] == twice


def test_an_op_named_as_its_family_does_not_repeat_it(tmp_path: Path) -> None:
    laid = new_op.lay(tmp_path, "moe", "moe")
    assert {"csrc/moe/moe.cpp", "csrc/moe/problem.h", "csrc/moe/cuda.cu"} < set(laid)
    assert '#include "moe/problem.h"' in (tmp_path / "csrc/moe/moe.cpp").read_text()
    assert list(check_layout.room_names(tmp_path)) == []
    assert list(check_layout.mirror(tmp_path)) == []


def test_a_public_header_compiles_alone(tmp_path: Path) -> None:
    good = {HEADER: "#pragma once\n#include <cstdint>\ninline std::int64_t one() { return 1; }\n"}
    assert violations(check_layout.headers_compile_alone, tmp_path, good) == []
    bad = {HEADER: "#pragma once\ninline std::int64_t one() { return 1; }\n"}
    found = violations(check_layout.headers_compile_alone, tmp_path, bad)
    assert len(found) == 1
    assert "does not compile alone" in found[0]


@pytest.mark.parametrize(
    "line",
    ["from ...nn import LayerNorm", "from transformer_kernels.nn.norm import LayerNorm",
     "import transformer_kernels.measure.case", "from ... import nn"],
)  # fmt: skip
def test_python_imports_go_one_way(tmp_path: Path, line: str) -> None:
    place = "transformer_kernels/ops/norm/layer_norm.py"
    found = violations(check_layout.python_layers, tmp_path, {place: f"{line}\n"})
    assert len(found) == 1
    assert "stands above it" in found[0]


@pytest.mark.parametrize("line", ["from .. import testing", "import transformer_kernels.nn.all"])
def test_equal_ranks_do_not_import_each_other(tmp_path: Path, line: str) -> None:
    ranks = check_layout.PYTHON_RANKS
    own, other = ("nn", "testing") if "testing" in line else ("testing", "nn")
    assert ranks[own] == ranks[other]
    sources = {f"transformer_kernels/{own}/all.py": f"def f():\n    {line}\n"}
    found = violations(check_layout.python_layers, tmp_path, sources)
    place = f"transformer_kernels/{own}/all.py:2"
    assert found == [f"{place}: {own} imports {other}, which stands beside it"]


@pytest.mark.parametrize("line", ["import transformer_kernels as tfk", "from .. import name"])
def test_the_package_itself_is_imported_from_above(tmp_path: Path, line: str) -> None:
    sources = {"transformer_kernels/nn/norm.py": line, "transformer_kernels/demo/train.py": line}
    (found,) = violations(check_layout.python_layers, tmp_path, sources)
    assert found == "transformer_kernels/nn/norm.py:1: nn imports __init__, which stands above it"


FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("from .c import x", "from ..ops.a import x"),
        ("from . import c", "from ..ops import a"),
        (f"{FOR_TYPES}from .c import x", "def f():\n    import transformer_kernels.ops.a"),
        ("from transformer_kernels.ops.c import x", "from . import b"),
    ],
)
def test_python_modules_import_in_no_circle(tmp_path: Path, first: str, last: str) -> None:
    sources = {"a.py": "from .b import x\n", "b.py": f"{first}\n", "c.py": f"{last}\n"}
    placed = {f"transformer_kernels/ops/{name}": text for name, text in sources.items()}
    (found,) = violations(check_layout.python_circles, tmp_path, placed)
    steps = found.partition(": a circle of imports")[0].split(" -> ")
    assert steps[0] == steps[-1]
    assert {"transformer_kernels/ops/b.py", "transformer_kernels/ops/c.py"} <= {*steps}


def test_a_package_may_name_its_modules(tmp_path: Path) -> None:
    sources = {
        "transformer_kernels/ops/__init__.py": f"{FOR_TYPES}from .a import x\n",
        "transformer_kernels/ops/a.py": "from . import b\nfrom ..ops.c import x\n",
        "transformer_kernels/ops/b.py": "from .c import x\n",
        "transformer_kernels/ops/c.py": "import torch\n",
    }
    assert violations(check_layout.python_circles, tmp_path, sources) == []


def test_python_imports_downwards(tmp_path: Path) -> None:
    sources = {
        "transformer_kernels/nn/norm.py": "from ..ops.norm import x\nfrom .. import functional\n",
        "transformer_kernels/ops/norm/x.py": "import torch\nfrom ..._errors import translate\n",
    }
    assert violations(check_layout.python_layers, tmp_path, sources) == []


def test_sizes(tmp_path: Path) -> None:
    sources = {"a.py": "x = 1\n" * 601, "b.h": "/" * 101 + "\n", "c.md": "m" * 300}
    found = violations(check_layout.sizes, tmp_path, sources)
    assert found == [
        "a.py: 601 lines, expected at most 600",
        "b.h:1: 101 columns, expected at most 100",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.cpp", "// const int x = 3;"),
        ("a.cpp", "// run(x, y);"),
        ("a.cuh", "// #include <set>"),
        ("a.py", "# x = compute(3)"),
        ("a.py", "# return x"),
        ("a.py", "# TO" + "DO tidy this up"),
        ("a.cpp", "// FIX" + "ME"),
    ],
)
def test_dead_code_and_open_ends(tmp_path: Path, name: str, line: str) -> None:
    assert len(violations(check_layout.comments, tmp_path, {name: f"{line}\n"})) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.cpp", "// y[j] = exp(z[j] - max(z)) / sum_k exp(z[k] - max(z))"),
        ("a.cpp", "// the same dtype; weight and bias are (C,);"),
        ("a.py", "# Straight to the kernel where nothing needs a second look."),
        ("a.py", "# TO" + "DO(#12) tidy this up"),
    ],
)
def test_prose(tmp_path: Path, name: str, line: str) -> None:
    assert violations(check_layout.comments, tmp_path, {name: f"{line}\n"}) == []


def test_paths_of_documents_exist(tmp_path: Path) -> None:
    text = "[a](docs/a.md) [b](docs/b.md#part) `tools/x.py` `tools/y.py` [c](https://c.org) `a/b`\n"
    sources = {"README.md": text, "docs/a.md": "", "tools/x.py": ""}
    found = violations(check_layout.markdown_paths, tmp_path, sources)
    assert found == [
        "README.md: links to docs/b.md, which does not exist",
        "README.md: names tools/y.py, which does not exist",
    ]


def test_the_root_stays_small(tmp_path: Path) -> None:
    few = {f"f{i}": "" for i in range(check_layout.MOST_ROOT_ENTRIES)}
    assert violations(check_layout.root_entries, tmp_path, {**few, ".hidden": ""}) == []
    assert len(violations(check_layout.root_entries, tmp_path, {"one_more": ""})) == 1
