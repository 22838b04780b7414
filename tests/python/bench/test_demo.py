# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
import torch

from transformer_kernels.bench import schema

pytest.importorskip("transformers")

from transformer_kernels.demo import __main__ as demo
from transformer_kernels.demo.model import (
    fused_attention,
    put_in_kernels,
    softmax_attention,
    stock_model,
)
from transformer_kernels.demo.train import documentation
from transformer_kernels.nn import LayerNorm

each_attention = pytest.mark.parametrize("attend", [softmax_attention, fused_attention])


def _model():
    return stock_model(layers=2, width=32, heads=2, block=16, seed=3)


@each_attention
def test_the_kernels_take_every_place(attend):
    model = put_in_kernels(_model(), attend)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 5
    assert all(isinstance(norm, LayerNorm) for norm in norms)
    assert model.config._attn_implementation == f"transformer_kernels_{attend.__name__}"


@each_attention
@pytest.mark.parametrize("padding", [None, slice(10, None), slice(5)], ids=str)
def test_all_models_agree_with_padding_and_without(attend, padding):
    stock, ours = _model().eval(), put_in_kernels(_model(), attend).eval()
    tokens = torch.randint(256, (3, 16))
    mask = torch.ones_like(tokens)
    if padding is not None:
        mask[1, padding] = 0
    attention_mask = None if padding is None else mask
    expected = stock(tokens, attention_mask=attention_mask).logits
    got = ours(tokens, attention_mask=attention_mask).logits
    keep = mask.bool()
    torch.testing.assert_close(got[keep], expected[keep], rtol=1e-4, atol=1e-5)


@each_attention
def test_gradients_agree(attend):
    tokens = torch.randint(256, (3, 16))
    gradients = []
    for model in (_model(), put_in_kernels(_model(), attend)):
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@each_attention
def test_generation_with_a_cache_agrees(attend):
    stock, ours = _model().eval(), put_in_kernels(_model(), attend).eval()
    prompt = torch.randint(256, (1, 5))
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8,
               "do_sample": False, "pad_token_id": 0}  # fmt: skip
    assert torch.equal(ours.generate(prompt, **options), stock.generate(prompt, **options))


def test_the_text_is_bytes():
    text = documentation()
    assert text.dtype is torch.long
    assert len(text) > 100_000
    assert int(text.min()) >= 0
    assert int(text.max()) < 256


@pytest.mark.slow
def test_the_short_demo_runs_to_the_end(tmp_path, capsys):
    page, figures = tmp_path / "report.html", tmp_path / "demo.json"
    assert demo.main(["--quick", "--device", "cpu", "-o", str(page), "--json", str(figures)]) == 0
    text = capsys.readouterr().out
    for part in ("TRAINING LOSS", "tokens/s", "SPEED-UP OVER PYTORCH", "KERNEL PACK BENCHMARK"):
        assert part in text
    assert text.index("SPEED-UP OVER PYTORCH") < text.index("KERNEL PACK BENCHMARK")
    assert page.read_text(encoding="utf-8").count("<svg") >= 2
    training = schema.load(figures).training
    assert training.largest_difference < 1e-3
    assert [run.name for run in training.runs] == ["stock", "norms + softmax", "norms + attention"]
    assert all(run.losses[-1] < run.losses[0] for run in training.runs)
