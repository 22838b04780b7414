# SPDX-License-Identifier: MIT
"""Loading, info, schemas: the package around the ops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import transformer_kernels as tfk
from transformer_kernels import _library
from transformer_kernels._errors import translate
from transformer_kernels.ops.norm import layer_norm, rms_norm
from transformer_kernels.ops.softmax import softmax

PACKAGE_ROOT = str(Path(tfk.__file__).parents[1])
needs_library = pytest.mark.skipif(not _library.has_kernels, reason="the library is not built")


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )


@needs_library
@pytest.mark.parametrize(
    "name", ["int32", "int64", "int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2", "int16"]
)
def test_dtypes_that_no_kernel_computes_in(name: str) -> None:
    x = torch.zeros(2, 3).to(getattr(torch, name))
    with pytest.raises(RuntimeError, match=f"softmax: x is {name}, expected a floating-point"):
        torch.ops.transformer_kernels.softmax_forward(x, None, 1.0, False, False)


@needs_library
def test_a_mask_of_integers_is_no_mask() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="softmax: mask is uint8, expected bool or float32"):
        torch.ops.transformer_kernels.softmax_forward(x, x.byte(), 1.0, False, False)


def test_info_says_what_is_in_use() -> None:
    info = tfk.info()
    assert info.library_loaded == _library.has_kernels
    assert ("cpu" in info.backends) == _library.has_kernels
    assert "reference" in info.backends
    assert f"torch               {torch.__version__}" in str(info)


def test_python_m_info() -> None:
    command = [sys.executable, "-m", "transformer_kernels"]
    env = {**os.environ, "PYTHONPATH": PACKAGE_ROOT}
    run: dict[str, Any] = {"env": env, "capture_output": True, "text": True, "timeout": 120}
    result = subprocess.run([*command, "info"], **run)
    assert result.returncode == 0
    assert "backends" in result.stdout
    assert subprocess.run([*command, "nonsense"], **run).returncode == 2


def test_the_import_loads_no_compiler() -> None:
    """Loading either of these takes a second."""
    code = "import sys, transformer_kernels; print({'torch._dynamo', 'triton'} & {*sys.modules})"
    assert _python(code).stdout == "set()\n"


def test_a_wrong_TFK_LIBRARY_is_an_error() -> None:  # noqa: N802
    result = _python("import transformer_kernels", TFK_LIBRARY="/nowhere/lib.so")
    assert "TFK_LIBRARY names /nowhere/lib.so, which does not exist" in result.stderr


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="names in ELF files")
def test_pytorch_whose_libraries_have_other_names_is_found_by_its_links(tmp_path: Path) -> None:
    """As Debian's: here our library asks for a name that none of the loaded libraries has."""
    links, own = tmp_path / "lib", tmp_path / "own"
    links.mkdir()
    own.mkdir()
    for path in Path(torch.__file__).parent.glob("lib/*.so"):
        (links / path.name.replace("libc10.so", "libcXY.so")).symlink_to(path)
    built = _library.library_path().resolve()
    for path in built.parent.glob("*.so"):
        content = path.read_bytes().replace(b"\0libc10.so\0", b"\0libcXY.so\0")
        (own / path.name).write_bytes(content)
    code = f"""
import torch
torch.__file__ = {str(tmp_path / "__init__.py")!r}
import transformer_kernels as tfk
print(tfk.info().library_loaded, tfk.functional.softmax(torch.zeros(1, 4)).tolist())
"""
    result = _python(code, TFK_LIBRARY=str(own / built.name))
    assert result.stdout == "True [[0.25, 0.25, 0.25, 0.25]]\n", result.stderr


def test_a_mac_has_a_library_by_its_own_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFK_LIBRARY", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _library.library_path().name == "libtransformer_kernels_torch.dylib"


def test_without_the_library_the_formula_runs_and_says_so() -> None:
    code = """
import pathlib, warnings
exists = pathlib.Path.is_file
pathlib.Path.is_file = lambda p: p.name != "libtransformer_kernels_torch.so" and exists(p)
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import transformer_kernels as tfk
assert "make build" in str(caught[0].message), caught
assert tfk.info().backends[-1] == "reference" and not tfk.info().library_loaded
x = torch.randn(4, 8, requires_grad=True)
y, s = tfk.functional.add_rms_norm(tfk.functional.layer_norm(x, (8,)), x, (8,))
tfk.functional.softmax(y, -1, causal=True).sum().backward()
assert torch.isfinite(x.grad).all()
try:
    tfk.functional.softmax(x, -1, backend="cpu")
except ValueError as error:
    assert "expected 'reference'" in str(error) and "make build" in str(error), error
else:
    raise AssertionError("backend='cpu' ran without a library")
try:
    tfk.functional.layer_norm(x, (8,), torch.ones(7))
except ValueError as error:
    assert str(error).startswith("layer_norm: weight has 7 elements"), error
"""
    environment = {k: v for k, v in os.environ.items() if k != "TFK_LIBRARY"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": PACKAGE_ROOT},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


@needs_library
def test_dispatch_log_names_the_kernel() -> None:
    code = """
import torch, transformer_kernels.functional as F
F.softmax(torch.randn(4, 8), -1)
F.softmax(torch.randn(4, 8), 0)
F.dropout(torch.randn(4, 8), 1e-6)
"""
    result = _python(code, TFK_LOG="dispatch")
    assert "[tfk] softmax forward float32 4x8" in result.stderr
    assert "[tfk] softmax: dim 0 is not the last: x is copied" in result.stderr
    assert "[tfk] dropout: p is 1e-06, below 2^-17: nothing is dropped" in result.stderr


@pytest.mark.parametrize("built", [False, True])
def test_who_serves_cuda(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "has_cuda_kernels", built)
    monkeypatch.setattr(_library, "missing_reason", None)
    with FakeTensorMode():
        x = torch.empty(4, device="cuda")
    assert _library.have_kernels_for(x) == built
    if built:
        _library.require_backend("softmax", "cuda", x)
    else:
        with pytest.raises(ValueError, match="the library in use was built without CUDA"):
            _library.require_backend("softmax", "cuda", x)


@needs_library
@pytest.mark.parametrize("isa", ["scalar", "neon", "avx2", "avx512", "avx512_bf16", "amx"])
def test_every_instruction_set(isa: str) -> None:
    code = """
import torch, transformer_kernels.functional as F
F.softmax(torch.randn(2, 8), -1)
print("the processor has it")
from transformer_kernels.testing.cases import MAIN_CASES
from transformer_kernels.testing.check import check_problem
for dtype in (torch.float32, torch.bfloat16):  # C++ tests run the others on each set
    for case in MAIN_CASES:
        check_problem(case.build(torch.randn(3, 77).to(dtype)), magnitude=2.0)
"""
    result = _python(code, TFK_CPU_ISA=isa)
    if "the processor has it" not in result.stdout:
        assert "ValueError: TFK_CPU_ISA is" in result.stderr
        pytest.skip(f"this processor has no {isa}")
    assert result.returncode == 0, result.stderr


def test_modules_hold_their_functions() -> None:
    assert tfk.functional.layer_norm is layer_norm.layer_norm
    assert tfk.functional.rms_norm is rms_norm.rms_norm
    assert tfk.functional.softmax is softmax.softmax


def test_errors_of_others_pass_unchanged() -> None:
    error = RuntimeError("CUDA out of memory")
    assert translate("softmax", error) is error
    assert isinstance(translate("f", RuntimeError("TypeError: g: x is y")), TypeError)
    assert str(translate("f", RuntimeError("ValueError: g: x is y\nmore"))) == "f: x is y"
