# SPDX-License-Identifier: MIT
"""The steps of the example gpt2_block.py, and FusedGPT2Block, beside Hugging Face's GPT2Block."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

import transformer_kernels as tfk
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.tolerance import assert_close_to_reference

FOLDER = Path(__file__).parents[3] / "examples" / "python"
WIDTH, HEADS = 32, 4


def _example() -> Any:
    found = importlib.util.spec_from_file_location("gpt2_block", FOLDER / "gpt2_block.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


EXAMPLE = _example()
from_hf = tfk.nn.FusedGPT2Block.from_hf


def _stock(**options: Any) -> Any:
    """A block whose parameters are not 0 and 1, without dropout."""
    given = {"resid_pdrop": 0.0, "attn_pdrop": 0.0, **options}
    config = GPT2Config(n_embd=WIDTH, n_head=HEADS, **given)
    config._attn_implementation = "sdpa"
    block = GPT2Block(config, layer_idx=2)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return block


def _results(block: nn.Module, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    y = block(x)
    parameters = dict(block.named_parameters())
    gradients = torch.autograd.grad(y, [x, *parameters.values()], dy)
    return {"y": y.detach(), **dict(zip(("x", *parameters), gradients, strict=True))}


def _rows(block: nn.Module) -> Tensor:
    """Draws rows of which none has a hidden feature near 0, where the slope of relu jumps."""
    exact, least = copy.deepcopy(block).double(), []
    exact.mlp.c_fc.register_forward_hook(lambda *called: least.append(called[2].abs().min()))
    while not least or least[-1] < 1e-5:
        x = randn((2, 9, WIDTH), torch.float32)
        exact(x.double())
    return x


def _check(made: nn.Module, stock: nn.Module) -> None:
    """The rule of numerics, in training without dropout."""
    x, dy = _rows(stock), randn((2, 9, WIDTH), torch.float32)
    theirs = _results(stock, x, dy)
    exact = _results(copy.deepcopy(stock).double(), x.double(), dy.double())
    found = _results(made, x, dy)
    assert found.keys() == theirs.keys()
    for name, value in found.items():
        magnitude = float(exact[name].norm())  # of the terms of a gradient's sum
        assert_close_to_reference(value, theirs[name], exact[name], name, magnitude=magnitude)


@pytest.mark.parametrize("step", EXAMPLE.STEPS)
def test_each_step_computes_what_the_block_does(step: str) -> None:
    stock = _stock()
    made = EXAMPLE.STEPS[step](copy.deepcopy(stock))
    _check(made, stock)
    ours = {name: x.shape for name, x in made.state_dict().items()}
    assert ours == {name: x.shape for name, x in stock.state_dict().items()}


def test_the_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOKENS": 8, "WIDTH": WIDTH, "BATCH": 2}.items():
        monkeypatch.setattr(EXAMPLE, name, value)
    monkeypatch.setattr("sys.argv", ["gpt2_block.py", "--steps", "1"])
    monkeypatch.setattr(EXAMPLE, "stock_block", _stock)
    EXAMPLE.main()
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("stock", *EXAMPLE.STEPS, "fuse"))


@pytest.mark.parametrize(
    "options",
    [
        {"activation_function": "relu", "n_inner": 48},
        {"activation_function": "gelu", "layer_norm_epsilon": 1e-3},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_block_of_another_configuration(options: dict[str, Any]) -> None:
    stock = _stock(**options)
    _check(from_hf(stock), stock)


def test_what_is_computed_again_changes_nothing() -> None:
    stock = _stock()
    _check(from_hf(stock, recompute=1), stock)


def test_either_loads_the_other_s_state() -> None:
    stock, x = _stock().eval(), randn((2, 9, WIDTH), torch.float32)
    made = tfk.nn.FusedGPT2Block(WIDTH, HEADS)
    made.load_state_dict(stock.state_dict())
    torch.testing.assert_close(made(x), stock(x))
    other = _stock().eval()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), stock(x))


def test_from_hf_copies_numbers_mode_and_parameters() -> None:
    stock = _stock(resid_pdrop=0.1, attn_pdrop=0.2).eval().to(torch.bfloat16)
    made = from_hf(stock)
    assert (made.dropout, made.attention_dropout, made.training) == (0.1, 0.2, False)
    assert {x.dtype for x in made.parameters()} == {torch.bfloat16}
    own = {x.data_ptr() for x in made.parameters()}
    assert own.isdisjoint(x.data_ptr() for x in stock.parameters())


def test_blocks_that_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^FusedGPT2Block.from_hf: block has cross-attention"):
        from_hf(_stock(add_cross_attention=True))
    with pytest.raises(ValueError, match=r"from_hf: activation_function is 'tanh', expected one"):
        from_hf(_stock(activation_function="tanh"))
