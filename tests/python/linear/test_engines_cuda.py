# SPDX-License-Identifier: MIT
"""The engine that multiplies, according to the dispatch log, and engines that are asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from transformer_kernels.testing.programs import LEAVE

pytestmark = pytest.mark.cuda

CALLS = """
import os, sys, torch
from transformer_kernels import functional as F
torch.manual_seed(0)
def numbers(*sizes, scale=1.0):
    return scale * torch.randn(*sizes, device="cuda").bfloat16()
few, many, odd = numbers(4, 512), numbers(4096, 512), numbers(40, 511)
weight, odd_weight = (numbers(768, terms, scale=0.05) for terms in (512, 511))
down = numbers(512, 768, scale=0.05)
def gradient_of_mlp(backend):
    x = many.detach().requires_grad_()
    y = F.gated_mlp(x, weight, weight, down, backend=backend)
    return torch.autograd.grad(y, x, 0.1 * many)[0]
packed = F.quantize_weight(weight.float(), 4, 128)
calls = {
    "few": lambda backend: F.linear(few, weight, backend=backend),
    "many": lambda backend: F.linear(many, weight, backend=backend),
    "odd": lambda backend: F.linear(odd, odd_weight, backend=backend),
    "wide": lambda backend: F.linear(odd.float(), odd_weight.float(), backend=backend),
    "quantized": lambda backend: F.quantized_linear(few, *packed, backend=backend),
    "gated": lambda backend: F.gated_linear(many, weight, weight, backend=backend),
    "dgated": gradient_of_mlp,
}
for asked in sys.argv[1:]:
    name, os.environ["TFK_KERNEL"] = asked.split("=")
    expected = calls[name]("reference")
    print(f"[asked] {asked}", file=sys.stderr, flush=True)
    torch.testing.assert_close(calls[name]("cuda"), expected, rtol=2e-2, atol=2e-2)
"""
OF_FEW, OF_MANY = "product bfloat16 4x512x768", "product bfloat16 4096x512x768"
ODD = "product bfloat16 40x511x768"
ANYWHERE = {
    "few=": f"linear {OF_FEW}: few_rows runs",
    "few=plain": f"linear {OF_FEW}: plain runs",
    "few=cublaslt": f"linear {OF_FEW}: cublaslt runs",
    "many=cublaslt": f"linear {OF_MANY}: cublaslt runs",
    "many=ampere": f"linear {OF_MANY}: ampere runs",
    "odd=": f"linear {ODD}: cublaslt runs",
    "odd=plain": f"linear {ODD}: plain runs",
    "wide=": "linear product float32 40x511x768: cublaslt runs",
    "quantized=": "quantized_linear .*: few_rows runs",
    "quantized=plain": f"quantized_linear {OF_FEW}: plain runs",
    "gated=cublaslt": f"linear {OF_MANY}: cublaslt runs",
    "gated=ampere": "gated_linear .*: ampere runs",
    "gated=plain": f"linear {OF_MANY}: plain runs",
    "dgated=ampere": "linear_dgated .*: ampere runs",
    "dgated=plain": f"linear {OF_MANY}: plain runs",
}
ON_HOPPER = {
    "many=": f"linear {OF_MANY}: hopper runs",
    "gated=": "gated_linear .*: hopper runs",
    "gated=hopper": "gated_linear .*: hopper runs",
    "dgated=": "linear_dgated .*: hopper runs",
}


def test_which_engine_runs() -> None:
    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        pytest.skip("for engines of sm_80 and later")
    expected = ANYWHERE | (ON_HOPPER if capability == (9, 0) else {})
    found = subprocess.run(
        [sys.executable, "-c", CALLS + LEAVE, *expected],
        env={**os.environ, "TFK_KERNEL": "any", "TFK_LOG": "dispatch"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    logs = found.stderr.split("[asked] ")[1:]
    for (asked, line), lines in zip(expected.items(), logs, strict=True):
        assert re.search(rf"\] {line}$", lines, re.MULTILINE), f"{asked}: {lines}"
