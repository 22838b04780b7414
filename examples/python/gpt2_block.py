# SPDX-License-Identifier: MIT
"""Speeds up the block of Hugging Face's GPT-2 in four steps, by hand, and then by `tfk.fuse`.

    elementwise      each pass between two products is one kernel
    attention        so is attention, forward and backward
    attention_block  attention, its projections, the residual and the norm are one op
    block            the whole block is tfk.nn.FusedGPT2Block, three ops
    fuse             tfk.fuse finds out by itself what it may replace in the stock block

A step holds the parts of the stock block, so that parameters and `state_dict` stay as they are. It
is compared with the stock block (results and gradients, without dropout) and timed in training.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as T

import transformer_kernels as tfk
from transformer_kernels._extras import named
from transformer_kernels.measure.statistics import quantile
from transformer_kernels.measure.table import box

with named("gpt2_block"):  # transformers
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

F = tfk.functional
BATCH, TOKENS, WIDTH, HEADS = 8, 128, 192, 4


def stock_block(width: int = WIDTH, heads: int = HEADS, dropout: float = 0.1) -> Any:
    configure: Any = GPT2Config  # typed in part only
    config = configure(
        n_embd=width, n_head=heads, resid_pdrop=dropout, attn_pdrop=dropout, embd_pdrop=dropout
    )
    config._attn_implementation = "sdpa"
    return GPT2Block(config, layer_idx=0)


# ---- step 1 -------------------------------------------------------------------------------------


class Elementwise(nn.Module):
    """The passes between products: norms, bias with activation, bias with dropout and residual."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = block.ln_1, block.attn, block.ln_2, block.mlp

    def forward(self, hidden_states: Tensor) -> Tensor:
        norm, fc, down = self.ln_1, self.mlp.c_fc, self.mlp.c_proj
        x = F.layer_norm(hidden_states, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        normed, total = self.mix(x, hidden_states)
        hidden = F.gelu(normed @ fc.weight, "tanh", bias=fc.bias)
        return F.bias_dropout_add(
            hidden @ down.weight, down.bias, total, self.mlp.dropout.p, self.training
        )

    def mix(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Lets tokens see each other; returns the normed sum with the residual, and the sum."""
        attn, norm = self.attn, self.ln_2
        qkv = T.linear(x, attn.c_attn.weight.t(), attn.c_attn.bias)
        q, k, v = qkv.unflatten(-1, (3, attn.num_heads, -1)).unbind(2)
        heads = self.attend(q, k, v).flatten(2)
        return F.bias_dropout_add_layer_norm(
            heads @ attn.c_proj.weight, attn.c_proj.bias, residual, norm.weight, norm.bias,
            attn.resid_dropout.p, self.training, norm.eps,
        )  # fmt: skip

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        p = self.attn.attn_dropout.p if self.training else 0.0
        return T.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True).transpose(1, 2)


# ---- step 2 -------------------------------------------------------------------------------------


class WithAttention(Elementwise):
    """Attention reads its heads where the product wrote them, and draws dropout's mask again in
    its backward pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.attn.attn_dropout.p if self.training else 0.0
        heads: Tensor = F.attention(q, k, v, causal=True, dropout=p)
        return heads


# ---- step 3 -------------------------------------------------------------------------------------


class WithAttentionBlock(Elementwise):
    """One op from the first norm's result to the second norm's, with one autograd node."""

    def mix(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        attn, norm = self.attn, self.ln_2
        return F.attention_block(
            x, residual, attn.c_attn.weight.t(), attn.c_attn.bias, attn.c_proj.weight.t(),
            attn.c_proj.bias, norm.weight, norm.bias, attn.num_heads, causal=True, eps=norm.eps,
            attention_dropout_p=attn.attn_dropout.p, dropout_p=attn.resid_dropout.p,
            training=self.training,
        )  # fmt: skip


# ---- steps 4 and 5 ------------------------------------------------------------------------------


def fused(block: Any) -> Any:
    """The stock block after `tfk.fuse`, which returns a plan that says what runs."""
    tfk.fuse(block, torch.randn(BATCH, TOKENS, block.ln_1.weight.numel()))
    return block


STEPS: dict[str, Callable[[Any], nn.Module]] = {
    "elementwise": Elementwise,
    "attention": WithAttention,
    "attention_block": WithAttentionBlock,
    "block": tfk.nn.FusedGPT2Block.from_hf,
}


# ---- comparison ---------------------------------------------------------------------------------


def results(block: nn.Module, hidden: Tensor) -> dict[str, Tensor]:
    """The result, and the gradients of the input and of all parameters, without dropout."""
    block.eval().zero_grad()
    hidden = hidden.detach().requires_grad_()
    y = block(hidden)
    y.square().sum().backward()
    gradients = {name: x.grad.clone() for name, x in block.named_parameters() if x.grad is not None}
    assert hidden.grad is not None
    return {"y": y.detach(), "input": hidden.grad, **gradients}


def largest_error(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest error, relative to the largest number of its tensor."""
    return max(
        float((got[name] - exact).abs().max() / exact.abs().max())
        for name, exact in expected.items()
    )


def step(block: nn.Module, hidden: Tensor) -> float:
    """Runs both passes in training; returns the seconds."""
    begin = time.perf_counter()
    block(hidden).sum().backward()
    block.zero_grad()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="of training, by each block in turn")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    stock, hidden = stock_block(), torch.randn(BATCH, TOKENS, WIDTH)
    blocks = {"stock": stock}
    blocks |= {name: make(copy.deepcopy(stock)) for name, make in STEPS.items()}
    blocks["fuse"] = fused(copy.deepcopy(stock))
    expected = results(stock, hidden)
    errors = {name: largest_error(results(x, hidden), expected) for name, x in blocks.items()}
    assert max(errors.values()) < 1e-4, errors
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(steps + 1):
        for name, block in blocks.items():
            seconds[name].append(step(block.train(), hidden))
    times = {name: quantile(sorted(found[1:]), 0.5) for name, found in seconds.items()}
    body = [
        [name, f"{errors[name]:.1e}", f"{1e3 * times[name]:.2f}",
         f"{times['stock'] / times[name]:.2f}x"]
        for name in blocks
    ]  # fmt: skip
    headings = [("Step", 16), ("error", 7), ("ms", 7), ("speed-up", 8)]
    print(box("A GPT-2 BLOCK, STEP BY STEP", "both passes, with dropout 0.1", headings, body))


if __name__ == "__main__":
    main()
