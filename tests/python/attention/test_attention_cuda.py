# SPDX-License-Identifier: MIT
"""attention on CUDA: streams, graphs, memory, and the same dropout as on the CPU."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.functional import attention, attention_varlen
from transformer_kernels.testing.attention import Call, check, differentiate, exact, tensors
from transformer_kernels.testing.graphs import capture
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.programs import LEAVE

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("_on_cuda")]
LOW = [torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("low", LOW, ids=["float32", "bfloat16"])


@pytest.fixture
def _on_cuda() -> Iterator[None]:
    with torch.device("cuda"):
        yield


def _step(leaves: list[Tensor], gradient: Tensor, **options: Any) -> tuple[Tensor, ...]:
    out = attention(*leaves, **{"deterministic": True, **options})
    return (out.detach(), *torch.autograd.grad(out, leaves, gradient))


@each_dtype
def test_second_stream(low: torch.dtype) -> None:
    """The kernels run on the current stream, so they see work queued there before them."""
    leaves = [x.requires_grad_() for x in tensors(300, 300, dtype=low)]
    gradient = randn(leaves[0].shape, low)
    expected = _step(leaves, gradient, causal=True)
    late = [torch.zeros_like(x) for x in leaves]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for target, x in zip(late, leaves, strict=True):
            target.copy_(x.detach())
        results = _step([x.requires_grad_() for x in late], gradient, causal=True)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@each_dtype
def test_graph_capture(low: torch.dtype) -> None:
    # More heads than a GPU has room for at once: each replay deals the work out anew.
    leaves = [x.requires_grad_() for x in tensors(130, 200, 80, 40, dtype=low)]
    gradient = randn(leaves[0].shape, low)
    options: dict[str, Any] = {"causal": True, "softcap": 20.0}
    graph, captured = capture(lambda: _step(leaves, gradient, **options))
    for _ in range(2):
        with torch.no_grad():
            for x in leaves:
                x.copy_(torch.randn_like(x))
        graph.replay()
        expected = _step(leaves, gradient, **options)
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def test_graph_drops_afresh_at_each_replay() -> None:
    leaves = [x.requires_grad_() for x in tensors(64, 64)]
    gradient = torch.ones_like(leaves[0])
    graph, captured = capture(lambda: _step(leaves, gradient, dropout=0.5))
    outcomes = []
    for _ in range(3):
        graph.replay()
        outcomes.append([x.clone() for x in captured])
    for first, second in itertools.pairwise(outcomes):
        assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graph_of_sequences_takes_new_offsets() -> None:
    q, k, v = (randn((100, 2, 32), torch.bfloat16).requires_grad_() for _ in range(3))
    offsets = torch.tensor([0, 30, 100], dtype=torch.int32)

    def step() -> tuple[Tensor, ...]:
        out = attention_varlen(q, k, v, offsets, causal=True, deterministic=True)
        return (out.detach(), *torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))

    graph, captured = capture(step)
    for at in ([0, 77, 90], [0, 0, 100]):
        offsets.copy_(torch.tensor(at, dtype=torch.int32))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


def test_no_call_waits_for_the_device() -> None:
    leaves = [x.requires_grad_() for x in tensors(70, 90, dtype=torch.bfloat16)]
    q, k, v = (randn((100, 2, 32), torch.bfloat16).requires_grad_() for _ in range(3))
    offsets = torch.tensor([0, 30, 100], dtype=torch.int32)
    gradient = torch.ones_like(leaves[0])
    bias = torch.zeros(2, 1, 90, dtype=torch.bfloat16).requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _step(leaves, gradient, causal=True, dropout=0.2, bias=bias)
        out = attention_varlen(q, k, v, offsets, causal=True, dropout=0.2)
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    finally:
        torch.cuda.set_sync_debug_mode("default")


FORCED = """
import os, sys, torch
from transformer_kernels.functional import attention
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2100, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
expected = attention(q, k, v, backend="reference")
for name in sys.argv[1:]:
    print(f"[asked] {name}", file=sys.stderr, flush=True)
    os.environ["TFK_KERNEL"] = name
    torch.testing.assert_close(attention(q, k, v), expected, rtol=2e-2, atol=2e-3)
"""


def test_engines_and_plans_can_be_asked_for() -> None:
    """Each plan reports that it runs, but `128` reports `128_long`; an unknown name is refused."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper's plans")
    names = [f"hopper_forward_{of}" for of in ("64", "96", "128", "128_long", "192", "256")]
    names += [f"hopper_forward_{of}_extras" for of in ("64", "128", "256")]
    names += ["tensor_core", "tensor_core_64 64x64", "tensor_core_256_extras", "plain", "192x80"]
    environment = {**os.environ, "TFK_KERNEL": "any", "TFK_LOG": "dispatch"}

    def run(*asked: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", FORCED, *asked]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    found = run(*names)
    assert found.returncode == 0, found.stderr
    for name, lines in zip(names, found.stderr.split("[asked] ")[1:], strict=True):
        assert re.search(rf": [\w ]*{name}[\w ]* runs$", lines, re.MULTILINE), lines
    assert "no kernel takes" in run("none_of_these").stderr


FORCED_BACKWARD = """
import os, sys, torch
from transformer_kernels.functional import attention
torch.manual_seed(0)
def gradients(backend, name):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    os.environ["TFK_KERNEL"] = "hopper_forward"
    out = attention(*leaves, causal=True, backend=backend)
    os.environ["TFK_KERNEL"] = name
    out.backward(dout)
    return [x.grad for x in leaves]
for name in sys.argv[1:]:
    dim = int(next(part for part in name.split("_") if part.isdigit()))
    q, k, v, dout = (
        torch.randn(1, 300, 2, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    expected = gradients("reference", "any")
    print(f"[asked] {name}", file=sys.stderr, flush=True)
    for got, wanted in zip(gradients("auto", name), expected):
        torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2)
"""


def test_kernels_for_more_take_less_too() -> None:
    """Kernels for packed sequences and for features also compute plain causal attention."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper's kernels")
    names = [f"hopper_backward_{dim}" for dim in (64, 128, 192, 256)]
    names += [f"{name}_{of}" for name in names for of in ("packed", "weights")]
    names += ["hopper_backward_64_scores", "hopper_backward_128_scores"]
    names += ["tensor_core_64", "tensor_core_64_extras", "tensor_core_128_extras"]
    environment = {**os.environ, "TFK_KERNEL": "any", "TFK_LOG": "dispatch"}
    found = subprocess.run(
        [sys.executable, "-c", FORCED_BACKWARD + LEAVE, *names],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    for name, lines in zip(names, found.stderr.split("[asked] ")[1:], strict=True):
        assert re.search(rf"backward.*: {name} \d+x\d+ runs$", lines, re.MULTILINE), lines


@each_dtype
def test_the_same_elements_drop_as_on_the_cpu(low: torch.dtype) -> None:
    q, k, v = tensors(70, 130, 4, 2, dim=32, dtype=low)
    seed = torch.tensor([2**61 + 5, 3])
    options: dict[str, Any] = {"dropout": 0.4, "causal": True}
    here = attention(q, k, v, seed=seed, **options)
    assert torch.equal(here, attention(q, k, v, seed=seed.cpu(), **options))
    there = attention(*(x.cpu() for x in (q, k, v)), seed=seed.cpu(), **options)
    tolerance = 1e-5 if low is torch.float32 else 2e-2
    torch.testing.assert_close(here.cpu(), there, rtol=tolerance, atol=tolerance)


LONG_MASKS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (300, 40)}, {"softcap": 15.0}]


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("time", [4096, 4224])
@pytest.mark.parametrize("options", LONG_MASKS, ids=str)
def test_long_sequences(options: dict[str, Any], time: int, dim: int) -> None:
    leaves = tensors(time, time, 2, 1, dim=dim, batch=1, dtype=torch.bfloat16)
    check(Call(*leaves, options=options))


@pytest.mark.parametrize("dims", [(192, 128), (128, 40), (40, 128), (256, 8)], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "softcap": 20.0}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_values_of_another_dim(
    low: torch.dtype, options: dict[str, Any], dims: tuple[int, int]
) -> None:
    """The head dims 192 and 128 are DeepSeek's."""
    dim, value_dim = dims
    leaves = tensors(300, 420, 4, 2, dim=dim, value_dim=value_dim, dtype=low)
    check(Call(*leaves, options=options))


@pytest.mark.slow
def test_tensors_of_more_than_2_to_the_31_elements() -> None:
    """Only the last queries of the last head are checked: a window bounds what they depend on."""
    total = torch.cuda.get_device_properties(0).total_memory
    if total < 80 << 30:
        pytest.skip("needs 80 GiB of GPU memory")
    time, heads, dim, window, last = (1 << 17) + 64, 128, 128, 127, 64
    options: dict[str, Any] = {"causal": True, "window": (window, 0)}
    leaves = [
        x.requires_grad_()
        for x in tensors(time, time, heads, heads, dim=dim, batch=1, dtype=torch.bfloat16)
    ]
    gradient = randn(leaves[0].shape, torch.bfloat16)
    out, dq, dk, dv = _step(leaves, gradient, **options)
    seen = last + window
    q, k, v = (
        x.detach()[:, -rows:, -1:].clone()
        for x, rows in zip(leaves, (last, seen, seen), strict=True)
    )
    call = Call(q, k, v, options=options)
    expected, gradients = differentiate(exact, call, gradient[:, -last:, -1:], torch.float64)
    wanted = (expected["out"], gradients["q"], gradients["k"], gradients["v"])
    for x, y in zip((out, dq, dk, dv), wanted, strict=True):
        found = x[:, -last:, -1:].double()
        torch.testing.assert_close(found, y[:, -last:], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("heads", [(16, 16), (32, 4)], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 20)}], ids=str)
@pytest.mark.parametrize(("dim", "asks"), [(64, False), (40, False), (128, True), (256, True)])
def test_sums_of_many_tiles_agree(
    dim: int, asks: bool, options: dict[str, Any], heads: tuple[int, int]
) -> None:
    """There are more tiles than fit on a GPU at once. Up to 64 columns sums are always
    deterministic."""
    shape: dict[str, Any] = {"dim": dim, "batch": 4, "dtype": torch.bfloat16}
    leaves = [x.requires_grad_() for x in tensors(900, 1000, *heads, **shape)]
    gradient = randn(leaves[0].shape, torch.bfloat16)
    first = _step(leaves, gradient, deterministic=asks, **options)
    different = torch.zeros((), dtype=torch.int64)
    for _ in range(100):
        again = _step(leaves, gradient, deterministic=asks, **options)
        for a, b in zip(again, first, strict=True):
            different += (a != b).count_nonzero()
    assert not different.item()


@pytest.mark.parametrize("options", [{"causal": True}, {"causal": True, "softcap": 20.0}], ids=str)
def test_memory_grows_with_the_length_alone(options: dict[str, Any]) -> None:
    """With 128K tokens the scores alone would be 32 GiB, and the tensors are a few of 16 MiB."""
    time = 131072
    leaves = [
        x.requires_grad_() for x in tensors(time, time, 1, 1, dim=64, batch=1, dtype=torch.bfloat16)
    ]
    gradient = torch.ones_like(leaves[0])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, *_ = _step(leaves, gradient, **options)
    assert torch.cuda.max_memory_allocated() - before < 256 << 20
    q, k, v = (x.detach() for x in leaves)
    last = exact(q[:, -64:], k, v, **options)[0]
    torch.testing.assert_close(out[:, -64:].double(), last, rtol=2e-2, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_second_device() -> None:
    """Kernels run on their tensors' device, and leave the current device as it was."""
    torch.cuda.set_device(0)
    with torch.device("cuda:1"):
        check(Call(*tensors(40, 50), options={"causal": True}))
    assert torch.cuda.current_device() == 0


def test_offsets_and_seeds_of_another_device_are_refused() -> None:
    q, k, v = (randn((9, 2, 8), torch.float32) for _ in range(3))
    offsets = torch.tensor([0, 9], dtype=torch.int32, device="cpu")
    with pytest.raises(ValueError, match="cu_seqlens_q is on cpu:0, expected cuda:0"):
        attention_varlen(q, k, v, offsets)
    there = [x.cpu()[None] for x in (q, k, v)]
    seed = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="seed is not a seed and an offset"):
        attention(*there, dropout=0.5, seed=seed)
