# SPDX-License-Identifier: MIT
"""Scaled dot-product attention with all that modern models put into its scores.

    s = softcap * tanh(scale * (q @ k.T) / softcap) + bias - slope * distance
    out = dropout(softmax(s where visible)) @ v

A query that sees no key gives 0, a log-sum-exp of -inf, and gradient 0.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from ..._errors import (
    ArgumentTypeError,
    ArgumentValueError,
    check_number,
    check_tensors,
    translate,
)
from ..._library import have_kernels_for, require_backend
from ..._torch import any_autocast, has_memory, is_traced, is_transformed, knows_ops_of_others
from .._dtype import accumulate_dtype
from .._kinds import ask_overloads, is_distributed, is_jagged, refuse_dispatch, require_memory
from . import _formula, _jagged
from ._arguments import check
from ._autograd import Attention, apply_eagerly, public
from ._formula import Inputs, Options
from ._kernels import DIRECT, RAW, triton_kernels

_OP = "attention"
_MOST_SEED = 2**63 - 1


def fresh_seed(device: torch.device) -> Tensor:
    """A seed and an offset for dropout, from the device's generator: a CUDA graph draws new ones at
    each replay."""
    return torch.randint(_MOST_SEED, (2,), dtype=torch.int64, device=device)


def is_served(x: Tensor) -> bool:
    """Whether attention is ours on the device of ``x``; elsewhere PyTorch's kernels are better than
    our formula."""
    return x.is_cpu or have_kernels_for(x)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What PyTorch's attention does under autocast: the lower dtype, but for float64."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    lower = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(x.to(dtype) if x.dtype in lower else x for x in tensors)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _prepare_for_distributed(dropout: float, backend: str) -> None:
    """Tell PyTorch how the ops are split."""
    if dropout:
        raise ArgumentValueError(
            f"attention: dropout is {dropout:g}, expected 0 with DTensors (local_map gives every"
            " device a call of its own, with its own seed)"
        )
    if backend not in ("auto", "cpu", "cuda"):
        raise ArgumentValueError(
            f"attention: backend is {backend!r}, expected 'auto' with DTensors"
        )
    importlib.import_module(f"{__package__}._sharding")


def run(
    inputs: Inputs, options: Options, deterministic: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp, by the kernels of the backend."""
    if is_distributed(inputs.q):
        _prepare_for_distributed(options.dropout, backend)
    compiling = torch.compiler.is_compiling()
    kernels = RAW if compiling else DIRECT
    plain = is_transformed()
    if backend != "auto" or plain or not have_kernels_for(inputs.q):
        check(inputs, options)
        require_backend("attention", backend, inputs.q)
        if backend == "triton":
            refuse_dispatch(_OP, inputs._asdict(), has_memory, "which Triton's kernels cannot read")
            kernels = triton_kernels()
        if backend == "reference" or plain:
            return _formula.forward(*inputs, *options)
    if not compiling and is_traced():  # whose check asks without gradients for the same graph
        return public(*inputs, *options, deterministic)
    differentiated = (inputs.q, inputs.k, inputs.v, inputs.bias, inputs.sinks)
    if not torch.is_grad_enabled() or not any(
        x is not None and x.requires_grad for x in differentiated
    ):
        return kernels.forward(*inputs, *options)
    if not compiling:
        return apply_eagerly(*inputs, *options, deterministic, kernels)
    if torch.compiler.is_exporting():
        return public(*inputs, *options, deterministic)
    return Attention.apply(*inputs, *options, deterministic, kernels)


def _not_a_window(window: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"attention: window is {window!r}, expected two ints (left, right), -1 for no bound"
    )


def _window(window: Any, causal: bool) -> tuple[int, int]:
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise _not_a_window(window)
    left, right = window
    return left, 0 if causal else right


def _statistics(name: str, x: Tensor | None, q: Tensor) -> Tensor | None:
    """Slopes and sinks in the dtype of the arithmetic."""
    if x is None or not isinstance(x, Tensor):
        return x
    if name == "alibi_slopes" and x.requires_grad:
        raise ArgumentValueError(
            "attention: alibi_slopes requires a gradient, expected constants (it has none)"
        )
    return x.to(accumulate_dtype(q)) if x.is_floating_point() else x


def _check_types(inputs: Inputs) -> None:
    for name in ("q", "k", "v"):
        if getattr(inputs, name) is None:
            raise ArgumentTypeError(f"attention: {name} is NoneType, expected a Tensor")
    check_tensors("attention", inputs._asdict())
    require_memory(_OP, inputs._asdict())


def _call(
    inputs: Inputs,
    causal: bool,
    window: tuple[int, int],
    scale: float | None,
    softcap: float,
    dropout: float,
    top_left: bool,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    try:
        if inputs.bias is not None and type(inputs.bias) is not Tensor:
            require_memory(_OP, {"bias": inputs.bias})
        if any_autocast():
            q, k, v = _autocast(inputs.q, inputs.k, inputs.v)
            inputs = inputs._replace(q=q, k=k, v=v)
        q = inputs.q
        if scale is None:
            scale = q.shape[-1] ** -0.5 if q.dim() and q.shape[-1] else 1.0
        if dropout and inputs.seed is None:
            inputs = inputs._replace(seed=fresh_seed(q.device))
        if inputs.alibi_slopes is not None or inputs.sinks is not None:
            inputs = inputs._replace(
                alibi_slopes=_statistics("alibi_slopes", inputs.alibi_slopes, q),
                sinks=_statistics("sinks", inputs.sinks, q),
            )
        left, right = _window(window, causal)
        options = Options(scale, left, right, top_left, softcap, dropout)
        return run(inputs, options, deterministic, backend)
    except (RuntimeError, AttributeError, TypeError) as error:
        if isinstance(error, (ArgumentValueError, ArgumentTypeError)):
            raise
        _check_types(inputs)
        for name, value in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
            check_number("attention", name, value)
        if not all(isinstance(size, (int, torch.SymInt)) for size in window):
            raise _not_a_window(window) from None
        translated = translate("attention", error)
        if translated is error:
            why = "which does not know this op"
            refuse_dispatch(_OP, inputs._asdict(), knows_ops_of_others, why)
        raise translated from None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    top_left: bool = False,
    heads_first: bool = False,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention of ``q`` (B, Tq, H, D) to ``k`` (B, Tk, Hk, D) and ``v`` (B, Tk, Hk, Dv).

    Strides are free where the last one is 1; other tensors are copied. Query head ``h`` reads head
    ``h // (H // Hk)`` of ``k`` and ``v``. D and Dv are 1 to 256. Jagged nested tensors run as
    :func:`attention_varlen`; results are nested with the offsets of ``q``.

    Args:
        q, k, v: of one floating-point dtype; the arithmetic is in float32 (float64 for float64).
        causal: hide the future. The last query stands beside the last key; with ``top_left``, as
            in PyTorch, the first beside the first.
        window: how many keys before and after its own place a query sees; -1 for no bound.
        scale: factor of the products; default ``D ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
        bias: added to the scores; broadcasts to (B, H, Tq, Tk), of ``q``'s dtype or float32, and
            may require a gradient.
        mask: boolean, true takes part; broadcasts to (B, H, Tq, Tk).
        alibi_slopes: (H,) or (B, H); ``slope * distance`` comes off each score.
        sinks: (H,): a score of every query that belongs to no key. May require a gradient.
        dropout: the probability that a weight is dropped.
        seed: int64 seed and offset, on the CPU or beside ``q``, that determine what is dropped,
            the same on every device; default: from the generator of ``q``'s device.
        heads_first: tensors are (B, H, T, D) instead, and so is the result.
        return_lse: return the log-sum-exp of the scores, (B, H, Tq), as well. Differentiable.
        deterministic: whether the gradient of ``q`` is the same bits in every run on Hopper too
            where that costs time: above a head dim of 64, for packed sequences and with features of
            scores. Elsewhere it always is, and so are all other results.
            :func:`torch.use_deterministic_algorithms` asks for it as well.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``, the formula;
            ``"auto"`` is the kernels of ``q``'s device, or the formula where there are none.

    Returns:
        (B, Tq, H, Dv), or the pair of that and the log-sum-exp.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument that the op cannot take, by name.
    """
    jagged = type(q) is not Tensor and is_jagged(q) and is_jagged(k) and is_jagged(v)
    if jagged or has_torch_function_variadic(q, k, v, bias, mask, alibi_slopes, sinks, seed):
        named: dict[str, Any] = {
            "causal": causal, "window": window, "scale": scale, "softcap": softcap, "bias": bias,
            "mask": mask, "alibi_slopes": alibi_slopes, "sinks": sinks, "dropout": dropout,
            "seed": seed, "top_left": top_left, "heads_first": heads_first,
            "return_lse": return_lse, "deterministic": deterministic, "backend": backend,
        }  # fmt: skip
        if jagged:
            return _jagged.attention(attention_varlen, q, k, v, **named)
        tensors = {"q": q, "k": k, "v": v, **named}
        return ask_overloads(_OP, attention, tensors, q, k, v, **named)
    if heads_first:
        given: dict[str, Any] = {"q": q, "k": k, "v": v}
        for name, x in given.items():
            if not isinstance(x, Tensor):
                _check_types(Inputs(q, k, v, *[None] * 7))
            if x.dim() != 4:
                raise ArgumentValueError(
                    f"attention: {name} has {x.dim()} dimensions, expected 4"
                    " (batch, heads, time, dim)"
                )
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    inputs = Inputs(q, k, v, bias, mask, alibi_slopes, sinks, None, None, seed)
    out, lse = _call(
        inputs, causal, window, scale, softcap, dropout, top_left, deterministic, backend
    )
    if heads_first:
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    top_left: bool = False,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
) -> Any:
    """:func:`attention` within sequences of different lengths, one after the other.

    Args:
        q, k, v: (total Tq, H, D), (total Tk, Hk, D), (total Tk, Hk, Dv).
        cu_seqlens_q: int32 (sequences + 1): where each sequence begins, and where the last ends.
            Rows past that are not read, and 0 in the result.
        cu_seqlens_k: the same for ``k`` and ``v``; default ``cu_seqlens_q``.

    The other arguments are those of :func:`attention`.

    Returns:
        (total Tq, H, Dv), or the pair of that and the log-sum-exp, (H, total Tq).
    """
    if has_torch_function_variadic(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks, seed):
        tensors = {
            "q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        }  # fmt: skip
        named = {
            "causal": causal, "window": window, "scale": scale, "softcap": softcap,
            "alibi_slopes": alibi_slopes, "sinks": sinks, "dropout": dropout, "seed": seed,
            "top_left": top_left, "return_lse": return_lse, "deterministic": deterministic,
            "backend": backend,
        }  # fmt: skip
        placed = tuple(tensors.values())
        return ask_overloads(_OP, attention_varlen, {**tensors, **named}, *placed, **named)
    if cu_seqlens_q is None:
        raise ArgumentTypeError("attention: cu_seqlens_q is NoneType, expected a Tensor")
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    inputs = Inputs(q, k, v, None, None, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seed)
    out, lse = _call(
        inputs, causal, window, scale, softcap, dropout, top_left, deterministic, backend
    )
    return (out, lse) if return_lse else out
