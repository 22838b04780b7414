# SPDX-License-Identifier: MIT
"""tools/hub.py: the layout, and the kernel as the package `kernels` loads it; with CUDA where the
library has it."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformer_kernels import _library

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "hub.py"
SYSTEM = f"{platform.machine()}-{platform.system().lower()}"
CUDA = _library.has_cuda_kernels
DEVICE = "cuda" if CUDA else "cpu"
BACKEND = f"cu{torch.version.cuda or '13.0'}".replace(".", "") if CUDA else "cpu"
OTHER = "cpu" if CUDA else "cu130"

pytestmark = [
    pytest.mark.skipif(not _library.has_kernels, reason="the native library is not built"),
    pytest.mark.skipif(CUDA and not torch.cuda.is_available(), reason="no CUDA device"),
]

LOADED = """
import sys
from pathlib import Path

import torch
from kernels import get_local_kernel

assert not any(Path(p).joinpath("transformer_kernels").is_dir() for p in sys.path), sys.path
kernel = get_local_kernel(Path(sys.argv[1]))
assert Path(sys.modules["transformer_kernels"].__file__).is_relative_to(sys.argv[1])
from transformer_kernels import _library
assert _library.missing_reason is None
x = torch.randn(4, 33, device=sys.argv[2], requires_grad=True)
y = kernel.functional.layer_norm(x, (33,))
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (33,)))
y.sum().backward()
assert get_local_kernel(Path(sys.argv[1])) is kernel
"""
LAYERS = """
import sys
from pathlib import Path

import torch
from kernels import (
    LocalLayerRepository, Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping,
)
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, activations
from transformers.models.llama.modeling_llama import LlamaRMSNorm

path, device = Path(sys.argv[1]), sys.argv[2]
names = {
    "RMSNorm": LlamaRMSNorm, "SiLU": activations.SiLUActivation,
    "GeLU": activations.GELUActivation, "GeluTanh": activations.GELUTanh,
    "NewGELU": activations.NewGELUActivation, "FastGELU": activations.FastGELUActivation,
}
for name, kind in names.items():  # as Transformers does beside the versions that it knows
    replace_kernel_forward_from_hub(kind, name)
mapping = {n: {device: {Mode.FALLBACK: LocalLayerRepository(path, layer_name=n)}} for n in names}
llama = LlamaForCausalLM(LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
))
gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=16))
tokens = torch.randint(50, (2, 9), device=device)
for model, changed in ((llama, ("LlamaRMSNorm", "SiLUActivation")), (gpt2, ("NewGELUActivation",))):
    expected = model.to(device).eval()(tokens).logits
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device=device)
    for name in changed:
        modules = [m for m in model.modules() if type(m).__name__ == name]
        assert modules, name
        assert all(m.forward.__func__.__module__.endswith(".layers") for m in modules), name
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-6)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hub") / "repository"
    command = [sys.executable, str(TOOL), str(out), "--backend", BACKEND]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_layout(repository: Path) -> None:
    variant = repository / "build" / f"torch-stable-abi210-{BACKEND}-{SYSTEM}"
    described = json.loads((variant / "metadata.json").read_text())
    assert described["name"] == "transformer-kernels"
    assert described["backend"] == {"type": DEVICE}
    for name in ("build.toml", "README.md", "torch-ext/transformer_kernels/layers.py"):
        assert (repository / name).is_file()
    for path in (repository / "torch-ext/transformer_kernels").glob("*.py"):
        assert (variant / path.name).read_text() == path.read_text()
    assert not list(repository.rglob("__pycache__"))


def test_refusals(tmp_path: Path) -> None:
    refused = {
        ("--backend", OTHER): f"backend is {OTHER!r}, expected ",
        ("--backend", "rocm"): "backend is 'rocm', expected 'cpu' or one such as 'cu130'",
        ("--architectures", "90a-real"): "architecture is '90a-real', expected one such as 9.0a",
        ("--libraries", str(tmp_path)): "does not exist, expected a build",
    }
    for options, words in refused.items():
        ran = subprocess.run(
            [sys.executable, str(TOOL), str(tmp_path / "out"), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 1
        assert words in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("kernels") is None, reason="the package kernels is not installed"
)
@pytest.mark.parametrize("program", [LOADED, LAYERS], ids=["functions", "layers"])
def test_the_kernel_is_loaded(program: str, repository: Path, tmp_path: Path) -> None:
    """Loads the kernel in a process that cannot find the package elsewhere."""
    places = [p for p in sys.path if p and not (Path(p) / "transformer_kernels").is_dir()]
    start = f"import sys\nsys.path[:] = {places!r}\n"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", start + program, str(repository), DEVICE],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
