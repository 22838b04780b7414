# SPDX-License-Identifier: MIT
"""Tables, scalings, and the module that holds them."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import transformer_kernels as tfk
from transformer_kernels.functional import rope, rope_tables
from transformer_kernels.ops.rope.tables import frequencies

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn of DeepSeek": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn with a factor": {**YARN, "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn without truncation": {**YARN, "truncate": False},
}
each_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


def _one_frequency(index: int, dim: int, base: float, scaling: dict[str, Any] | None) -> float:
    """One frequency by the papers' formulas."""
    plain = base ** (-2 * index / dim)
    kind = (scaling or {}).get("rope_type", "default")
    if scaling is None or kind == "default":
        return plain
    factor = scaling["factor"]
    if kind == "linear":
        return plain / factor
    context = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        wavelength = 2 * math.pi / plain
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength < context / high:
            return plain
        if wavelength > context / low:
            return plain / factor
        smooth = (context / wavelength - low) / (high - low)
        return (1 - smooth) * plain / factor + smooth * plain
    fast, slow = scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0)
    low = dim * math.log(context / (2 * math.pi * fast)) / (2 * math.log(base))
    high = dim * math.log(context / (2 * math.pi * slow)) / (2 * math.log(base))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = min(max((index - low) / (high - low), 0.0), 1.0)
    return plain / factor * ramp + plain * (1 - ramp)


@each_scaling
@pytest.mark.parametrize(("dim", "base"), [(128, 10000.0), (64, 500000.0), (2, 10000.0)])
def test_frequencies(scaling: dict[str, Any] | None, dim: int, base: float) -> None:
    found, _ = frequencies(dim, base, scaling)
    expected = [_one_frequency(i, dim, base, scaling) for i in range(dim // 2)]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0
    )


@each_scaling
def test_tables(scaling: dict[str, Any] | None) -> None:
    cos, sin = rope_tables(50, 16, scaling=scaling, dtype=torch.float64)
    assert cos.shape == sin.shape == (50, 8)
    turns, factor = frequencies(16, 10000.0, scaling)
    for position in (0, 1, 49):
        for index in (0, 3, 7):
            angle = position * turns[index].item()
            assert cos[position, index].item() == pytest.approx(factor * math.cos(angle), rel=1e-12)
            assert sin[position, index].item() == pytest.approx(factor * math.sin(angle), rel=1e-12)
    narrow = rope_tables(50, 16, scaling=scaling, dtype=torch.bfloat16)
    assert torch.equal(narrow[0], cos.to(torch.bfloat16))


def test_attention_factors() -> None:
    """The factors are the paper's 0.1 ln(s) + 1, DeepSeek-V2's quotient, and 1 without scaling."""
    assert frequencies(64, scaling=YARN)[1] == pytest.approx(0.1 * math.log(4) + 1)
    deepseek = SCALINGS["yarn of DeepSeek"]
    quotient = (0.1 * math.log(40) + 1) / (0.1 * 0.707 * math.log(40) + 1)
    assert frequencies(64, scaling=deepseek)[1] == pytest.approx(quotient)
    assert frequencies(64, scaling={**YARN, "attention_factor": 1.25})[1] == 1.25
    assert frequencies(64, scaling={**YARN, "factor": 1.0})[1] == 1.0
    assert frequencies(64, scaling=LLAMA3)[1] == 1.0


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn", "yarn of DeepSeek"])
def test_as_transformers_has_them(name: str) -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    scaling = SCALINGS[name]
    assert scaling is not None
    parameters = {**scaling, "rope_theta": 500000.0}
    config = llama.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=131072,
        rope_parameters=parameters,
    )  # fmt: skip
    expected, factor = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    found, own_factor = frequencies(128, 500000.0, scaling)
    torch.testing.assert_close(found.float(), expected, rtol=2e-6, atol=0)
    assert own_factor == pytest.approx(factor)


def test_bad_arguments() -> None:
    def expect(words: str, *arguments: Any, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=f"^rope_tables: {words}"):
            rope_tables(*arguments)

    expect("max_positions is -1, expected 0 or more", -1, 16)
    expect("rotary_dim is 15, expected an even number of 2 or more", 4, 15)
    expect("rotary_dim is 0, expected an even number of 2 or more", 4, 0)
    expect("rotary_dim is '8', expected an int", 4, "8", kind=TypeError)
    expect("base is 1, expected a finite number above 1", 4, 16, 1.0)
    expect("scaling is 3, expected a mapping or None", 4, 16, 1e4, 3, kind=TypeError)
    expect(r"scaling\['rope_type'\] is 'x', expected 'default',", 4, 16, 1e4,
           {"rope_type": "x"})  # fmt: skip
    expect("scaling has no 'factor', expected one with 'linear'", 4, 16, 1e4, {"type": "linear"})
    expect(r"scaling\['factor'\] is 0, expected a finite number above 0", 4, 16, 1e4,
           {**YARN, "factor": 0})  # fmt: skip
    expect(r"scaling\['high_freq_factor'\] is 1, expected more than 1", 4, 16, 1e4,
           {**LLAMA3, "high_freq_factor": 1.0})  # fmt: skip


def _expect(words: str, scaling: dict[str, Any], **options: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^rope_tables: {words}"):
        rope_tables(4, 16, scaling=scaling, **options)


@each_scaling
def test_keys_that_would_be_ignored(scaling: dict[str, Any] | None) -> None:
    """A misspelt key, or one of another kind of scaling, is refused by name."""
    scaling = scaling or {}
    kind = scaling.get("rope_type", "default")
    for key in scaling:
        if key != "rope_type":
            _expect(f"scaling has an unknown key '{key}s', did you mean '{key}'?",
                    {**scaling, f"{key}s": scaling[key]})  # fmt: skip
    for key in {key for other in SCALINGS.values() for key in other or {}}:
        if key not in ("rope_type", *scaling) and not (kind == "yarn" and key in YARN_OPTIONS):
            _expect(f"scaling has '{key}', expected none with the rope_type '{kind}'",
                    {**scaling, key: 2.0})  # fmt: skip
            assert torch.equal(
                frequencies(16, scaling={**scaling, key: None})[0],
                frequencies(16, scaling=scaling)[0],
            )
    _expect("scaling has an unknown key 'rope_tpye', did you mean 'rope_type'?",
            {**scaling, "rope_tpye": "yarn"})  # fmt: skip
    _expect("scaling has an unknown key 'window', expected rope_type, ", {**scaling, "window": 3})
    _expect("scaling has 'mrope_section', expected none ", {**scaling, "mrope_section": [2, 3, 3]})


YARN_OPTIONS = (
    "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"
)  # fmt: skip


@each_scaling
def test_keys_of_every_kind(scaling: dict[str, Any] | None) -> None:
    """``rope_theta`` is the base; tables cover the rotated part alone, so its share must be 1."""
    expected = frequencies(16, 500000.0, scaling)[0]
    theta = {**(scaling or {}), "rope_theta": 500000.0, "partial_rotary_factor": 1.0}
    assert torch.equal(frequencies(16, scaling=theta)[0], expected)
    assert torch.equal(frequencies(16, 500000.0, theta)[0], expected)
    assert torch.equal(rope_tables(4, 16, scaling=theta)[0], rope_tables(4, 16, 5e5, scaling)[0])
    module = tfk.nn.RotaryEmbedding(16, 4, scaling=theta)
    assert torch.equal(module.cos, rope_tables(4, 16, 5e5, scaling)[0])
    assert "base=500000" in repr(module)
    words = r"scaling\['rope_theta'\] is 500000.0, expected 10000 \(base\)"
    _expect(words, theta, base=10000.0)
    _expect(r"scaling\['rope_theta'\] is 1, expected a finite number above 1", {"rope_theta": 1})
    half = {**theta, "partial_rotary_factor": 0.5}
    _expect(r"scaling\['partial_rotary_factor'\] is 0.5, expected 1 or none", half)


def test_keys_that_contradict_each_other() -> None:
    _expect(r"scaling\['type'\] is 'linear', expected 'yarn'", {**YARN, "type": "linear"})
    _expect("scaling has no 'mscale_all_dim', expected one with 'mscale'", {**YARN, "mscale": 1.0})
    _expect(r"scaling\['truncate'\] is 'no', expected True or False", {**YARN, "truncate": "no"})


# ---- the module ---------------------------------------------------------------------------------


def test_module() -> None:
    module = tfk.nn.RotaryEmbedding(16, 32, 500000.0, scaling=YARN, interleaved=True)
    assert module.state_dict() == {}
    q, k = torch.randn(2, 7, 4, 16), torch.randn(2, 7, 1, 16)
    tables = rope_tables(32, 16, 500000.0, YARN)
    expected = rope(q, k, *tables, interleaved=True, offsets=3)
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        for y, e in zip(twin(q, k, offsets=3), expected, strict=True):
            assert torch.equal(y, e)
    assert "16, max_positions=32, base=500000" in repr(module)
    assert "interleaved=True" in repr(module)
    first = tfk.nn.RotaryEmbedding(16, 32, heads_first=True, backend="reference")
    torch.testing.assert_close(
        first(q.transpose(1, 2)).transpose(1, 2), tfk.nn.RotaryEmbedding(16, 32)(q)
    )


def test_tables_of_a_module_keep_their_precision() -> None:
    module = tfk.nn.RotaryEmbedding(16, 32)
    cos = module.cos.clone()
    for dtype in (torch.bfloat16, torch.float16):
        module.to(dtype)
        assert torch.equal(module.cos, cos)
        q = torch.randn(2, 7, 4, 16).to(dtype)
        assert module(q).dtype is dtype
    module.double()
    assert module.cos.dtype is torch.float64
    torch.testing.assert_close(module.cos.float(), cos)
    module(torch.randn(2, 7, 4, 16, dtype=torch.float64))
    empty = tfk.nn.RotaryEmbedding(16, 32, device="meta")
    assert torch.equal(empty.to_empty(device="cpu").cos, cos)
