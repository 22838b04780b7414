# SPDX-License-Identifier: MIT
"""The demo's answer of a trained model, with a tiny one in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from transformer_kernels.demo.answer import answer, stock_model
from transformer_kernels.models import Llama

from .conftest import hugging_face, prompt

pytest.importorskip("gguf", reason="the package gguf writes the file")

from . import gguf_files


def test_a_model_answers_stock_and_ours(tmp_path: Path) -> None:
    path, cpu = tmp_path / "tiny.gguf", torch.device("cpu")
    model = hugging_face("llama2", max_position_embeddings=512)
    gguf_files.write(path, model, {"ffn_up.weight": "Q8_0"})
    found = answer(path, cpu, 6)
    assert min(found.stock, found.ours) > 0
    tokens = prompt(length=7)
    with torch.no_grad():
        stock, ours = stock_model(path, cpu)(tokens).logits, Llama.from_pretrained(path)(tokens)
    assert float((stock - ours).norm() / ours.norm()) < 0.05  # stock is in bfloat16
