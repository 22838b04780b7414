# SPDX-License-Identifier: MIT
"""The calls of rival packages, with stand-ins that have their signatures.

Those of Liger 0.8.5, QuACK 0.6.5, fa3_fwd 0.0.3, flash-attn-3 3.0.0 and flash-attn-4 4.0.0b36.
"""

from __future__ import annotations

import sys
import types
from itertools import pairwise

import pytest
import torch

from transformer_kernels.bench import cases, providers
from transformer_kernels.bench.rivals import attention as attention_rivals
from transformer_kernels.measure.case import PASSES, Problem, UnsupportedError
from transformer_kernels.measure.verify import Reference
from transformer_kernels.testing import reference

CPU = torch.device("cpu")
aten = torch.ops.aten


def _layer_norm(x, weight, bias, eps):
    return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _rms_norm(x, weight, eps):
    return torch.rms_norm(x, x.shape[-1:], weight, eps)


def _layer_norm_backward(dy, x, weight, mean, rstd):
    normalized = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    projected = normalized * (g * normalized).mean(-1, keepdim=True)
    dx = (g - g.mean(-1, keepdim=True) - projected) * rstd[:, None]
    return dx, (dy * normalized).sum(0), dy.sum(0)


def _rms_norm_backward(dy, x, weight, rstd, dsum=None):
    normalized = x * rstd[:, None]
    g = dy * weight
    dx = (g - normalized * (g * normalized).mean(-1, keepdim=True)) * rstd[:, None]
    return (dx if dsum is None else dx + dsum), (dy * normalized).sum(0)


def _rstd(x, eps):
    return torch.rsqrt(x.square().mean(-1) + eps)


def _function(forward):
    """A stand-in for an autograd.Function."""
    return types.SimpleNamespace(apply=forward)


def liger_softmax():
    def backward(dy, y, BLOCK_SIZE, num_warps, multi_block_launch):
        return aten._softmax_backward_data(dy, y, -1, y.dtype)

    return {
        "LigerSoftmaxFunction": _function(lambda x: torch.softmax(x, -1)),
        "_softmax_forward": lambda x: (torch.softmax(x, -1), 64, 4, False),
        "_softmax_backward": backward,
    }


def liger_layer_norm():
    def forward(X, W, B, eps):
        variance, mean = torch.var_mean(X, -1, correction=0)
        return _layer_norm(X, W, B, eps), X, mean, torch.rsqrt(variance + eps), 64, 4

    def backward(dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None):
        return _layer_norm_backward(dY, X, W, Mean, RSTD)

    return {
        "LigerLayerNormFunction": _function(_layer_norm),
        "layer_norm_forward": forward,
        "layer_norm_backward": backward,
    }


def liger_rms_norm():
    def forward(X, W, eps, offset, casting_mode, row_mode):
        assert (offset, casting_mode) == (0.0, "llama")
        return _rms_norm(X, W, eps), X, _rstd(X, eps), 64, 4, 0

    def backward(
        dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode,
        needs_dw=None,
    ):  # fmt: skip
        assert in_place is False  # it would spoil dy for the next call
        assert (casting_mode, BLOCK_SIZE, num_warps) == (0, 64, 4)
        return _rms_norm_backward(dY, X, W, RSTD)

    def apply(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
        assert in_place is False
        return _rms_norm(X, W, eps)

    return {
        "LigerRMSNormFunction": _function(apply),
        "rms_norm_forward": forward,
        "rms_norm_backward": backward,
    }


def liger_fused_add_rms_norm():
    def forward(X, R, W, eps, offset, casting_mode):
        total = X + R
        return _rms_norm(total, W, eps), total, _rstd(total, eps), 64, 4, 2, 0

    def backward(
        dY, dS_out, S, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, num_stages,
        in_place, needs_dw=None,
    ):  # fmt: skip
        assert in_place is False
        dx, dweight = _rms_norm_backward(dY, S, W, RSTD, dS_out)
        return dx, dx, dweight

    def apply(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
        return _rms_norm(X + R, W, eps), X + R

    return {
        "LigerFusedAddRMSNormFunction": _function(apply),
        "fused_add_rms_norm_forward": forward,
        "fused_add_rms_norm_backward": backward,
    }


def quack_softmax():
    return {
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax_bwd": lambda dy, y: aten._softmax_backward_data(dy, y, -1, y.dtype),
    }


def quack_rmsnorm():
    def rmsnorm(
        x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None,
        eps=1e-6, prenorm=False, weight_offset=0.0,
    ):  # fmt: skip
        total = x if residual is None else x + residual
        y = _rms_norm(total, weight, eps)
        return (y, total) if prenorm else y

    def rmsnorm_bwd(
        x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False,
        weight_offset=0.0,
    ):  # fmt: skip
        return (*_rms_norm_backward(dout, x, weight, rstd, dresidual_out), None, None)

    def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
        assert weight.dtype is bias.dtype is torch.float32
        return _layer_norm(x, weight, bias, eps)

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        return _layer_norm_backward(dout, x, weight, mean, rstd)

    return {
        "rmsnorm": rmsnorm,
        "rmsnorm_bwd": rmsnorm_bwd,
        "layernorm_fwd": layernorm_fwd,
        "layernorm_bwd": layernorm_bwd,
    }


def quack_gemm_interface():
    """Gate and up columns alternate, in weights, results and gradients."""

    def of_act(z):
        return torch.nn.functional.gelu(z, approximate="tanh")

    def of_gate(pairs):
        return torch.nn.functional.silu(pairs[:, ::2]) * pairs[:, 1::2]

    by_name = {"gelu_tanh_approx": of_act, "swiglu": of_gate}

    def gemm(A, B, out=None, bias=None, *, tuned=True):
        return A @ B if bias is None else A @ B + bias

    def gemm_act(A, B, C=None, bias=None, activation=None, *, store_preact=True, tuned=True):
        z = gemm(A, B, bias=bias)
        return (z if store_preact else None), by_name[activation](z)

    def gemm_dact(A, B, PreAct, activation=None, *, tuned=True):
        with torch.enable_grad():
            z = PreAct.detach().requires_grad_()
            h = by_name[activation](z)
            (dz,) = torch.autograd.grad(h, z, A @ B)
        return dz, h.detach()

    return {
        "gemm": gemm,
        "gemm_act": gemm_act,
        "gemm_gated": gemm_act,
        "gemm_dact": gemm_dact,
        "gemm_dgated": gemm_dact,
    }


def _attention(q, k, v, causal, window_size, softcap=0.0, sinks=None):
    left, right = ((-1 if of is None else of) for of in window_size)
    window = (left, 0 if causal else right)
    return reference.attention(q, k, v, window=window, softcap=softcap, sinks=sinks)[0].to(q.dtype)


def _packed_attention(q, k, v, offsets):
    sequences = [slice(*pair) for pair in pairwise(offsets.tolist())]
    outs = [_attention(q[None, s], k[None, s], v[None, s], True, (-1, -1))[0] for s in sequences]
    return torch.cat(outs)


def fa3():
    def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
        v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
    ):  # fmt: skip
        return _attention(q, k, v, causal, window_size, softcap)

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
        seqused_k=None, softmax_scale=None, causal=False,
    ):  # fmt: skip
        assert causal
        assert cu_seqlens_q is cu_seqlens_k
        assert max_seqlen_q == max_seqlen_k
        return _packed_attention(q, k, v, cu_seqlens_q)

    return {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func}


def fa3_of_both_passes():
    def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
        return _attention(q, k, v, causal, (-1, -1)), None

    return {"flash_attn_func": flash_attn_func}


def fa4():
    def flash_attn_func(
        q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False,
        window_size=(None, None), learnable_sink=None, softcap=0.0,
    ):  # fmt: skip
        return _attention(q, k, v, causal, window_size, softcap, learnable_sink), None

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
        max_seqlen_k=None, causal=False,
    ):  # fmt: skip
        assert causal
        assert cu_seqlens_q is cu_seqlens_k
        assert max_seqlen_q == max_seqlen_k
        return _packed_attention(q, k, v, cu_seqlens_q), None

    return {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func}


_MODULES = {
    "liger_kernel": dict,
    "liger_kernel.ops": dict,
    "liger_kernel.ops.softmax": liger_softmax,
    "liger_kernel.ops.layer_norm": liger_layer_norm,
    "liger_kernel.ops.rms_norm": liger_rms_norm,
    "liger_kernel.ops.fused_add_rms_norm": liger_fused_add_rms_norm,
    "quack": dict,
    "quack.softmax": quack_softmax,
    "quack.rmsnorm": quack_rmsnorm,
    "quack.gemm_interface": quack_gemm_interface,
    "fa3_fwd_interface": fa3,
    "flash_attn": dict,
    "flash_attn.cute": fa4,
}
_ROWS, _HEADS, _MLP = (7, 65), (2, 33, 4, 2, 8), (9, 24, 40)
_OFFERED = (
    [
        (provider, name, pass_, _ROWS)
        for provider in ("liger", "quack")
        for name in ("softmax", "layer_norm", "rms_norm", "add_rms_norm")
        for pass_ in PASSES
        if (provider, name, pass_)
        != ("quack", "layer_norm", "both")  # it has no gradient of its own
    ]
    + [
        (provider, name, pass_, _HEADS)
        for provider, passes in (("fa3", PASSES[:1]), ("fa4", PASSES))
        for name in (
            "attention", "causal_attention", "windowed_attention", "softcap_attention",
            "packed_attention", *(["sink_attention"] if provider == "fa4" else []),
        )
        for pass_ in passes
    ]
    + [
        (provider, name, "forward", _MLP)
        for provider in ("quack", "quack_tuned")
        for name in (
            "linear", "linear_act", "gated_linear", "fc1_product", "fc2_product", "dgrad_product",
            "wgrad_product", "kept_linear_act", "linear_dact", "kept_gated_linear",
            "linear_dgated",
        )
    ]
)  # fmt: skip


@pytest.fixture
def rivals(monkeypatch):
    for name, make in _MODULES.items():
        module = types.ModuleType(name)
        vars(module).update(make())
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("rivals")
@pytest.mark.parametrize(("provider", "name", "pass_", "shape"), _OFFERED)
def test_a_rival_gets_its_arguments_in_their_order(provider, name, pass_, shape):
    op = cases.all_ops()[name]
    arguments = op.make(Problem(name, pass_, torch.float32, torch.float32, shape), CPU)
    with torch.no_grad():
        call = op.build(provider, pass_, lambda f: f)(arguments)
        assert Reference(op, pass_, arguments).check(call) < 1e-5


@pytest.mark.usefixtures("rivals")
@pytest.mark.parametrize("pass_", PASSES)
def test_fa3_of_both_passes_comes_first(pass_, monkeypatch):
    op = cases.all_ops()["causal_attention"]
    arguments = op.make(Problem(op.name, pass_, torch.float32, torch.float32, _HEADS), CPU)
    if pass_ == "backward":
        with pytest.raises(UnsupportedError, match="fa3_fwd has no backward pass"):
            op.build("fa3", pass_, lambda f: f)(arguments)
    package = types.ModuleType("flash_attn_interface")
    vars(package).update(fa3_of_both_passes())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", package)
    call = op.build("fa3", pass_, lambda f: f)(arguments)
    assert Reference(op, pass_, arguments).check(call) < 1e-5


_FLEX = [op.name for op in cases.all_ops().values() if "flex" in op.providers]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", _FLEX)
def test_flex_attention_has_the_feature(name, monkeypatch):
    """Runs uncompiled, with the same arguments; it has no backward pass on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(attention_rivals, "_compiled_flex_attention", lambda: flex_attention)
    op = cases.all_ops()[name]
    shape = (2, 70, 4, 2, 16)
    arguments = op.make(Problem(name, "forward", torch.float32, torch.float32, shape), CPU)
    with torch.no_grad():
        call = op.build("flex", "forward", lambda f: f)(arguments)
        assert Reference(op, "forward", arguments).check(call) < 1e-5


@pytest.mark.parametrize("argument", ["window_size", "is_causal"])
def test_packed_attention_in_torch_is_causal(argument, monkeypatch):
    """PyTorch 2.10 spells causality differently from later versions, and needs a GPU for it."""

    def by_window(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        assert window_size == (-1, 0)
        return _packed_attention(q, k, v, cu_seq_q)

    def by_flag(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
        assert is_causal
        return _packed_attention(q, k, v, cu_seq_q)

    run = by_window if argument == "window_size" else by_flag
    module = types.ModuleType("torch.nn.attention.varlen")
    vars(module)["varlen_attn"] = run
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    op = cases.all_ops()["packed_attention"]
    arguments = op.make(Problem(op.name, "both", torch.float32, torch.float32, _HEADS), CPU)
    call = op.build("flash", "both", lambda f: f)(arguments)
    assert Reference(op, "both", arguments).check(call) < 1e-5


def test_a_missing_package_is_a_reason():
    reason = providers.why_absent("quack", torch.device("cuda"))
    assert reason is None or reason.startswith("not importable (")
