# SPDX-License-Identifier: MIT
"""Every level of the block against one reference in float64."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch

from transformer_kernels import _library
from transformer_kernels.levels import LEVELS, Block, find_level, scripted
from transformer_kernels.testing import levels as held

# batch, time, channels, heads: odd ones, one token, one channel a head
SHAPES = [(2, 17, 24, 3), (1, 1, 8, 2), (3, 33, 7, 7), (1, 64, 65, 5)]
WITHOUT_COMPILER = [name for name in LEVELS if name != "compile"]  # it takes a minute
each_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(autouse=True)
def forget_graphs():
    """Compiles each test's block anew: torch.compile limits the variants of one function."""
    torch._dynamo.reset()


def skip_if_absent(level: str, device: str) -> None:
    if (reason := LEVELS[level].why_absent(torch.device(device))) is not None:
        pytest.skip(reason)


def _check(level: str, shape: tuple[int, ...], causal: bool, dtype: torch.dtype, device: str):
    skip_if_absent(level, device)
    batch, time, dim, heads = shape
    native = Block("torch", dim, heads, causal=causal, dtype=dtype, device=device)
    x, dy = (torch.randn(batch, time, dim).to(dtype).to(device) for _ in range(2))
    block = held.twins(native, [level])[level]
    found, theirs = held.results(block, x, dy), held.results(native, x, dy)
    assert {name: t.dtype for name, t in found.items()} == dict.fromkeys(found, dtype)
    assert held.violations(found, theirs, held.exact(native, x, dy)) == []


@pytest.mark.parametrize("level", WITHOUT_COMPILER)
@pytest.mark.parametrize("causal", [True, False])
def test_every_level_meets_the_rule(level, causal, dtype, device):
    if (level, device, dtype) == ("triton", "cuda", torch.float64):
        with pytest.raises(TypeError, match="Triton compiles no product of float64"):
            Block(level, 8, 2, dtype=dtype, device=device)(torch.randn(1, 2, 8).to(device, dtype))
        return
    _check(level, SHAPES[0], causal, dtype, device)


@pytest.mark.parametrize("level", WITHOUT_COMPILER)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_odd_sizes(level, shape, device):
    _check(level, shape, True, torch.float32, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "causal", "kind"),
    [(SHAPES[0], True, torch.bfloat16), (SHAPES[1], False, torch.float64)],
    ids=["bfloat16", "float64"],
)
def test_torch_compile_meets_the_rule(shape, causal, kind, device):
    _check("compile", shape, causal, kind, device)


@pytest.mark.parametrize("level", ["torchscript", "triton", "ours"])
def test_heads_of_every_width(level, device):
    skip_if_absent(level, device)
    _check(level, (1, 5, 256, 1), True, torch.float32, device)


@each_level
def test_a_level_may_be_a_number(level):
    number = list(LEVELS).index(level) + 1
    assert find_level(number) is find_level(level) is Block(number, 8, 2).level


def test_all_levels_have_the_same_keys():
    keys = {name: list(Block(name, 8, 2).state_dict()) for name in LEVELS}
    assert all(found == keys["torch"] for found in keys.values())
    assert len(keys["torch"]) == 12


@each_level
def test_a_block_is_copied_and_saved(level):
    block = Block(level, 8, 2)
    for twin in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert twin.level is block.level
        assert torch.equal(twin.qkv.weight, block.qkv.weight)


@pytest.mark.parametrize("level", WITHOUT_COMPILER)
def test_no_tokens(level, device):
    skip_if_absent(level, device)
    block = Block(level, 8, 2, device=device)
    x = torch.randn(0, 4, 8, device=device, requires_grad=True)
    y = block(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 4, 8)
    assert not block.qkv.weight.grad.any()


@pytest.mark.parametrize("level", ["torch", "torchscript", "ours"])
def test_autocast(level, device):
    skip_if_absent(level, device)
    native = Block("torch", 16, 2, device=device)
    block = held.twins(native, [level])[level]
    x = torch.randn(2, 9, 16, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = block(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == block.up.bias.grad.dtype == torch.float32
    torch.testing.assert_close(y, native(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("turbo", 8, 2), ValueError, "Block: level is 'turbo', expected 1 to 5 or one of 'torch'"),
        ((0, 8, 2), ValueError, "Block: level is 0, expected 1 to 5"),
        ((6, 8, 2), ValueError, "Block: level is 6, expected 1 to 5"),
        ((None, 8, 2), TypeError, "Block: level is None, expected 1 to 5"),
        ((True, 8, 2), TypeError, "Block: level is True, expected 1 to 5"),
        ((1, 10, 4), ValueError, r"Block: dim is 10, expected a multiple of num_heads \(4\)"),
        ((1, 0, 4), ValueError, "Block: dim is 0, expected at least 1"),
        ((1, 8, 0), ValueError, "Block: num_heads is 0, expected at least 1"),
        ((1, 8, -2), ValueError, "Block: num_heads is -2, expected at least 1"),
        ((1, 8.0, 2), TypeError, "Block: dim is 8.0, expected an int"),
        ((1, 1024, 2), ValueError, "Block: num_heads is 2, expected at least 4"),
    ],
)
def test_what_no_block_can_be(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Block(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp_ratio": 0}, "Block: mlp_ratio is 0, expected at least 1"),
        ({"causal": "yes"}, "Block: causal is 'yes', expected True or False"),
        ({"dtype": torch.int32}, "Block: dtype is int32, expected a floating-point dtype"),
        ({"eps": None}, "Block: eps is None, expected a number"),
    ],
)
def test_options_of_no_block(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Block(1, 8, 2, **options)


@each_level
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(4, 8), r"Block: x has shape \(4, 8\), expected \(batch, time, 8\)"),
        (torch.randn(1, 4, 9), r"Block: x has shape \(1, 4, 9\), expected \(batch, time, 8\)"),
        (torch.randn(1, 4, 8).double(), "Block: x is float64, expected float32"),
        (torch.randn(1, 4, 8, device="meta"), "Block: x is on meta, expected cpu"),
        ([[1.0]], "Block: x is list, expected a Tensor"),
    ],
    ids=["rank", "channels", "dtype", "device", "no tensor"],
)
def test_inputs_that_no_level_takes(level, x, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Block(level, 8, 2)(x)


def test_torchscript_that_is_gone_says_so(monkeypatch):
    def gone(_):
        raise RuntimeError("TorchScript has been removed\nwith a stack")

    monkeypatch.setattr(torch.jit, "script", gone)
    scripted._script.cache_clear()
    try:
        words = "torch.jit.script does not work here (RuntimeError: TorchScript has been removed)"
        assert LEVELS["torchscript"].why_absent(torch.device("cpu")) == words
        with pytest.raises(ValueError, match="Block: level is 'torchscript', expected another"):
            Block(2, 8, 2)(torch.randn(1, 3, 8))
    finally:
        scripted._script.cache_clear()


def test_torchscript_says_nothing_of_its_end():
    scripted._script.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Block("torchscript", 8, 2)(torch.randn(1, 3, 8))


def test_triton_without_a_device_says_so(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    level, cpu = LEVELS["triton"], torch.device("cpu")
    assert level.why_absent(cpu).startswith("runs on a GPU")
    assert "interpreter" in level.why_untimed(cpu)
    with pytest.raises(ValueError, match="backend is 'triton', expected"):
        Block("triton", 8, 2)(torch.randn(1, 3, 8))


def test_ours_without_kernels_is_no_formula(monkeypatch):
    monkeypatch.setattr(_library, "missing_reason", "there is no library")
    assert LEVELS["ours"].why_absent(torch.device("cpu")) == "there is no library"
    with pytest.raises(ValueError, match="there is no library"):
        Block("ours", 8, 2)(torch.randn(1, 3, 8))
    monkeypatch.setattr(_library, "missing_reason", None)
    assert "no kernels for mps" in LEVELS["ours"].why_absent(torch.device("mps"))


def test_compile_without_a_compiler_says_so(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    reason = LEVELS["compile"].why_absent(torch.device("cpu"))
    assert reason == "torch.compile does not work here (RuntimeError: no compiler)"
