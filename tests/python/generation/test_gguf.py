# SPDX-License-Identifier: MIT
"""Llama from GGUF: numbers of each format beside gguf's own, logits beside transformers', and files
that are broken."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transformer_kernels.models import Llama, OffsetLinear, PackedEmbedding
from transformer_kernels.models.llama import blocks, gguf_file
from transformer_kernels.nn import QuantizedLinear
from transformer_kernels.testing.tolerance import assert_close_to_reference

from .conftest import hugging_face, prompt

gguf = pytest.importorskip("gguf", reason="the package gguf is the reference")

from . import gguf_files  # noqa: E402  it needs the package

PACKED = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}  # whole blocks of 256


def filled(model: Any, means: dict[str, np.ndarray]) -> Any:
    """The model with the numbers that a file means."""
    state = {name: torch.from_numpy(x) for name, x in means.items()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", [*PACKED, "Q5_0"])
def test_numbers_are_decoded_exactly(name: str) -> None:
    seed = int(torch.randint(2**31, ()))
    rows = gguf_files.random_rows(name, 6, 512, np.random.default_rng(seed))
    kind = gguf.GGMLQuantizationType[name]
    expected = torch.from_numpy(gguf.dequantize(rows, kind))
    row = next(row for row in gguf_file.FORMATS.values() if row.name == name)
    stored = gguf_file.Stored("w", row, (6, 512), torch.from_numpy(rows))
    assert torch.equal(blocks.widened(stored), expected)
    assert (blocks.blocks_of(stored) is not None) == (name in PACKED)


def test_sizes_of_formats_are_those_of_gguf() -> None:
    for number, row in gguf_file.FORMATS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == tuple(row)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", [*PACKED, "F16", "BF16", "F32"])
@torch.no_grad()
def test_logits_are_those_of_transformers(name: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = hugging_face("llama3", **WIDE, rope_parameters={"rope_theta": 10000.0},
                         tie_word_embeddings=name == "Q6_K")  # fmt: skip
    kinds = dict.fromkeys(("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
                           "ffn_up.weight", "ffn_gate.weight", "ffn_down.weight",
                           "token_embd.weight"), name)  # fmt: skip
    stock = filled(model, gguf_files.write(path, model, kinds))
    ours = Llama.from_pretrained(path, packed=packed)
    attention = ours.model.layers[0].self_attn
    if packed and name in PACKED:
        offset = name in ("Q4_1", "Q4_K")
        assert type(attention.q_proj) is (OffsetLinear if offset else QuantizedLinear)
        assert isinstance(ours.model.embed_tokens, PackedEmbedding)
    else:
        assert isinstance(attention.q_proj, torch.nn.Linear)
    tokens = prompt(length=9)
    expected, wide = stock(tokens).logits, stock.double()(tokens).logits
    # transformers rotates in float32 in any model, so its float64 shows mistakes, and no rounding.
    exact = Llama.from_pretrained(path, dtype=torch.float64, packed=False)(tokens)
    scale = float(exact.abs().max())
    torch.testing.assert_close(exact, wide, atol=1e-4 * scale, rtol=0)
    assert_close_to_reference(ours(tokens), expected, exact, name, magnitude=32 * scale)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@torch.no_grad()
def test_qwen_has_biases_or_norms_and_rows_in_order(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    changes = {"head_dim": 16} if kind == "qwen2" else {}
    model = hugging_face(kind, sliding_window=None, use_sliding_window=False, **changes)
    stock = filled(model, gguf_files.write(path, model, {"ffn_up.weight": "Q8_0"}, kind))
    tokens = prompt(length=9)
    expected = stock(tokens).logits
    found = Llama.from_pretrained(path)(tokens)
    torch.testing.assert_close(found, expected, atol=1e-4 * expected.abs().max(), rtol=0)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, hugging_face("llama2"))
    return path


def test_a_file_that_ends_early_is_named(tiny: Path) -> None:
    whole = tiny.read_bytes()
    header = 4096
    for size in (*range(0, header, 7), len(whole) - 1):
        tiny.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"tiny\.gguf: "):
            Llama.from_pretrained(tiny)


def test_a_file_with_random_bytes_in_its_header_is_named_or_read(tiny: Path) -> None:
    """Whatever a header says, the answer is a model or an error that names the file."""
    whole = bytearray(tiny.read_bytes())
    for _ in range(150):
        broken = bytearray(whole)
        for place in torch.randint(4, 3000, (3,)).tolist():
            broken[place] = int(torch.randint(256, ()))
        tiny.write_bytes(broken)
        try:
            Llama.from_pretrained(tiny)
        except ValueError as error:
            assert "tiny.gguf" in str(error)  # noqa: PT017  most of them raise, some do not


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"GGUX", "does not begin with GGUF"),
        (4, struct.pack("<I", 99), "its version is 99"),
        (8, struct.pack("<Q", 2**60), "has 0 dimensions|ends after"),
        (16, struct.pack("<Q", 2**60), "ends after|unknown kind"),
    ],
)
def test_a_header_that_cannot_be_is_named(
    place: int, value: bytes, message: str, tiny: Path
) -> None:
    whole = bytearray(tiny.read_bytes())
    whole[place : place + len(value)] = value
    tiny.write_bytes(whole)
    with pytest.raises(ValueError, match=message):
        Llama.from_pretrained(tiny)


def test_layers_that_a_file_does_not_have_are_not_made(tiny: Path) -> None:
    key, whole = b"llama.block_count", bytearray(tiny.read_bytes())
    place = whole.index(key) + len(key) + 4
    whole[place : place + 4] = struct.pack("<I", 2**32 - 1)
    tiny.write_bytes(whole)
    with pytest.raises(ValueError, match=r"tiny\.gguf: it has no tensor blk\.4294967294\."):
        Llama.from_pretrained(tiny)


def test_what_a_file_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    model = hugging_face("llama2")
    gguf_files.write(path, model, architecture="falcon")
    with pytest.raises(ValueError, match=r"other\.gguf: general.architecture is 'falcon'"):
        Llama.from_pretrained(path)
    model.model.layers = model.model.layers[:1]
    gguf_files.write(path, model)
    with pytest.raises(ValueError, match=r"no tensor blk\.1\.attn_norm"):
        Llama.from_pretrained(path)
