# SPDX-License-Identifier: MIT
"""The readers of logs, symbol tables and documents."""

from __future__ import annotations

from pathlib import Path

import pytest

import check_docs_commands
import check_new_op
import check_ptxas
import check_symbols
import new_op
import worked_edits

PTXAS = """\
[1/2] Building CUDA object CMakeFiles/tfk_cuda_sm90a_Half.dir/csrc/norm/x_sm90a_typed.cu.o
ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90a'
ptxas info    : Function properties for _Z1aPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
[2/2] Building CUDA object CMakeFiles/tfk_cuda_all.dir/csrc/attention/plain/y.cu.o
ptxas info    : Compiling entry function '_Z1bPf' for 'sm_80'
ptxas info    : Function properties for _Z1bPf
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers
"""


def test_spills_are_found() -> None:
    kept, spilled = check_ptxas.parse(PTXAS)
    assert kept == check_ptxas.Resources("_Z1aPf", "sm_90a", "norm", 0, 40)
    assert spilled == check_ptxas.Resources("_Z1bPf", "sm_80", "attention", 20, 255)


@pytest.mark.parametrize(
    ("log", "status"), [(PTXAS, 1), (PTXAS[: PTXAS.index("[2/2]")], 0), ("no kernel", 1)]
)
def test_a_spill_or_an_empty_log_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, status: int
) -> None:
    file = tmp_path / "build.log"
    file.write_text(log)
    monkeypatch.setattr("sys.argv", ["check_ptxas.py", str(file)])
    assert check_ptxas.main() == status


def test_kernels_are_counted_against_the_budget() -> None:
    def kernels(family: str, *names: str) -> list[check_ptxas.Resources]:
        return [check_ptxas.Resources(name, "sm_80", family) for name in names]

    budget: dict[str, dict[str, int | str]] = {
        "norm": {"kernels": 2},
        "pointwise": {"kernels_per_op": 1, "op": r"math::(\w+)"},
    }
    gelu, silu = "_Z4passIN4math4GeluEfEvv", "_Z4passIN4math4SiluEfEvv"
    within = kernels("norm", "a", "b") + kernels("pointwise", gelu, silu, "sums")
    of_two_architectures = check_ptxas.Resources("a", "sm_90a", "norm")
    assert check_ptxas.over_budget([*within, of_two_architectures], budget) == []
    beyond = [*within, *kernels("norm", "c"), *kernels("pointwise", "_Z4passIN4math4GeluEdEvv")]
    assert check_ptxas.over_budget(beyond, budget) == [
        "norm: 3 kernels, expected at most 2",
        "pointwise: Gelu has 2 kernels, expected at most 1",
    ]
    assert check_ptxas.over_budget(kernels("rope", "d"), budget) == [
        "rope: 1 kernels, expected a family with a budget"
    ]


def test_an_engine_with_a_number_of_its_own_is_not_counted_in_its_family() -> None:
    budget = {"linear": {"kernels": 1, "ampere": {"kernels": 1}}}
    names = ["_Z4gemmv", "_ZN4cuda6ampere4gemmEv"]
    kernels = [check_ptxas.Resources(name, "sm_80", "linear") for name in names]
    assert check_ptxas.over_budget(kernels, budget) == []
    more = check_ptxas.Resources("_ZN4cuda6ampere5otherEv", "sm_80", "linear")
    assert check_ptxas.over_budget([*kernels, more], budget) == [
        "linear.ampere: 2 kernels, expected at most 1"
    ]


def test_only_the_stable_abi_and_the_core_may_be_undefined() -> None:
    core = {"_ZN19transformer_kernels18layer_norm_forwardERKNS_7ContextERKNS_11NormForwardE"}
    allowed = [
        "aoti_torch_get_sizes",
        "torch_call_dispatcher",
        "memcpy@GLIBC_2.14",
        "_ZSt17__throw_bad_allocv@GLIBCXX_3.4",
        "_ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv",
        "__gmon_start__",
        *core,
    ]
    refused = [
        "_ZN2at6Tensor4sizeEl",
        "_ZN3c105ErrorD1Ev",
        "cudaMalloc",
        "_ZN19transformer_kernels12log_dispatchEv",
    ]
    assert check_symbols.foreign([*allowed, *refused], core) == refused


def test_only_the_api_may_be_exported() -> None:
    api = [
        "_ZN19transformer_kernels18layer_norm_forwardERKNS_7ContextERKNS_11NormForwardE",
        "_ZNK19transformer_kernels4fpga5Array3setEv",
        "_ZTIN19transformer_kernels5ErrorE",
        "tfk_check",
    ]
    strays = [
        "_ZNSt8_Rb_treeISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES6_ES0_EE",
        "_ZTISt11_Mutex_baseILN9__gnu_cxx12_Lock_policyE2EE",
        "_ZNSt6localeC1Ev",
        "cudaMalloc",
        "_edata",
    ]
    assert check_symbols.stray([*api, *strays]) == strays


def test_a_runtime_of_its_own_is_noticed() -> None:
    of_libc = ["memcpy@GLIBC_2.14", "arc4random@GLIBC_2.36", "_Unwind_Resume@GCC_3.0"]
    assert check_symbols.has_own_runtime(of_libc)
    for shared in ("_ZSt20__throw_length_errorPKc@GLIBCXX_3.4", "_ZNSt3__16localeC1Ev"):
        assert not check_symbols.has_own_runtime([*of_libc, shared])


def test_blocks_of_a_document(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "```console\n$ echo one\none\n$ echo two \\\n    three\n```\n"
        "<!-- not run: too long -->\n```console\n$ make bench\n```\n"
        "```{literalinclude} a.py\n:lines: 2-\n```\n```python\nassert 1 + 1 == 2\n```\n"
    )
    found = list(check_docs_commands.blocks(document, tmp_path))
    assert [(b.place, b.language, b.skipped_because) for b in found] == [
        ("a.md:1", "console", None),
        ("a.md:8", "console", "too long"),
        ("a.md:14", "python", None),
    ]
    assert found[0].command()[-1] == "echo one\necho two \\\n    three"


def test_a_block_that_fails_is_noticed() -> None:
    def block(line: str) -> check_docs_commands.Block:
        return check_docs_commands.Block("a.md:1", "console", f"$ {line}", None)

    assert check_docs_commands.run(block("true"))
    assert not check_docs_commands.run(block("false"))


def test_an_op_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    laid = new_op.lay(tmp_path, "norm", "group_norm")
    assert len(laid) == len(new_op.PLACES) + 1
    marks = ("@family@", "@own@", "@op@", "@Op@")
    assert not [place for place in laid if any(m in (tmp_path / place).read_text() for m in marks)]
    with pytest.raises(FileExistsError, match="group_norm"):
        new_op.lay(tmp_path, "norm", "group_norm")
    assert new_op.camel("group_norm") == "GroupNorm"


DOCUMENT = """\
# A document

`a.py`, below `elsewhere`:

```python
not_of_the_section = 1
```

## Worked

What `a.py`, below `one`, is for.

`a.py`, below `one =`:

<!-- not run: an edit -->
```python

two = 2
```

`b.h`, below `{`:

```cpp
  int x;
  int y;
```

```console
$ true
```

## After

`a.py`, below `one`:
"""


def test_edits_of_a_document_are_carried_out(tmp_path: Path) -> None:
    edits = worked_edits.read_edits(DOCUMENT, "Worked")
    assert [(edit.path, edit.lines) for edit in edits] == [("a.py", 2), ("b.h", 2)]
    (tmp_path / "a.py").write_text("one = 1\nthree = 3\n")
    (tmp_path / "b.h").write_text("struct S {\n};\n")
    for edit in edits:
        worked_edits.carry_out(edit, tmp_path)
    assert (tmp_path / "a.py").read_text() == "one = 1\n\ntwo = 2\nthree = 3\n"
    assert (tmp_path / "b.h").read_text() == "struct S {\n  int x;\n  int y;\n};\n"


def test_edits_have_one_place_and_a_block(tmp_path: Path) -> None:
    edit = worked_edits.Edit("a.py", "one", "two\n")
    for text, count in (("zero\n", 0), ("one\none\n", 2)):
        (tmp_path / "a.py").write_text(text)
        with pytest.raises(ValueError, match=f"a.py: {count} lines contain 'one', expected 1"):
            worked_edits.carry_out(edit, tmp_path)
        assert (tmp_path / "a.py").read_text() == text
    with pytest.raises(ValueError, match="has no block below it"):
        worked_edits.read_edits(DOCUMENT, "After")
    with pytest.raises(ValueError, match="no section 'Before'"):
        worked_edits.read_edits(DOCUMENT, "Before")


@pytest.mark.parametrize(
    ("lines", "files", "allowed"), [(0, 0, 0), (10, 4, 1), (10, 5, 0), (11, 4, 0)]
)
def test_an_activation_has_a_price(lines: int, files: int, allowed: int) -> None:
    edits = [worked_edits.Edit(f"{i % files}", "x", "y\n" * 4) for i in range(lines)]
    assert (check_new_op.too_many(edits) is None) == bool(allowed)
