# SPDX-License-Identifier: MIT
"""softmax and log_softmax, with the scale and the masks of attention.

    z = input * scale + mask        (-inf where a boolean or the causal mask is false)
    softmax = exp(z - max(z)) / sum(exp(z - max(z)))        log_softmax = log(softmax)

A row of which every element is masked gives 0 (softmax) or -inf (log_softmax), and gradient 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from ..._errors import (
    MAX_RANK,
    ArgumentIndexError,
    ArgumentTypeError,
    ArgumentValueError,
    as_flag,
    as_number,
    check_floating,
    check_same_device,
    check_tensors,
    dtype_name,
    or_float32,
    shape_text,
    translate,
)
from ..._library import (
    direct,
    has_kernels,
    log_dispatch,
    public_op,
    raw_op,
    require_backend,
)
from ..._torch import (
    any_autocast,
    eager_apply,
    is_transformed,
    jagged_like,
    ragged_dim,
    softmax_dim,
    tracing_state,
)
from .._dtype import accumulate_dtype
from .._kinds import (
    ask_overloads,
    is_jagged,
    jagged_values,
    on_memory,
    only_jagged,
    refuse_in_words,
    require_memory,
)
from .._sharding import Shards, is_sharded
from .._torchscript import graph_op
from . import _formula

for _op in ("softmax", "log_softmax"):
    refuse_in_words(
        _op, causal="is a CausalBias, expected a plain tensor (causal=True hides the future)"
    )


# ---- the kernels --------------------------------------------------------------------------------


def _fake_forward(x: Tensor, mask: Tensor | None, *_: Any) -> Tensor:
    check_same_device("softmax", x, mask)
    return x.new_empty(x.shape)


def _fake_backward(dy: Tensor, y: Tensor, *_: Any) -> Tensor:
    check_same_device("softmax", y, dy)
    return y.new_empty(y.shape)


class Kernels(NamedTuple):
    """One backend: the signatures are those of the raw ops."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]


_ARGUMENTS = "Tensor x, Tensor? mask, float scale, bool causal, bool log"
FORWARD_SCHEMA = f"softmax_forward({_ARGUMENTS}) -> Tensor"
BACKWARD_SCHEMA = (
    "softmax_backward(Tensor dy, Tensor y, float scale, bool masked, bool log) -> Tensor"
)
_RAW = Kernels(
    raw_op(
        FORWARD_SCHEMA,
        reference=on_memory("softmax", _formula.forward),
        fake=_fake_forward,
    ),
    raw_op(
        BACKWARD_SCHEMA,
        reference=on_memory("softmax", _formula.backward),
        fake=_fake_backward,
    ),
)


_DIRECT = Kernels(*map(direct, _RAW))


# ---- differentiation ----------------------------------------------------------------------------


def _gradients(
    kernels: Kernels,
    dy: Tensor,
    y: Tensor,
    mask: Tensor | None,
    options: tuple[float, bool, bool],
    mask_needs_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``x`` and of an additive mask."""
    scale, causal, log = options
    masked = causal or mask is not None
    # With create_graph the formula takes the kernel's place: the kernel has no derivative.
    differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    backward = _formula.backward if differentiable else kernels.backward
    if not mask_needs_gradient:
        return backward(dy, y, scale, masked, log), None
    assert mask is not None
    dz = backward(dy, y, 1.0, masked, log)
    return dz * scale, dz.to(mask.dtype).sum_to_size(mask.shape)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor | None,
        scale: float,
        causal: bool,
        log: bool,
        kernels: Kernels,
    ) -> Tensor:
        y = kernels.forward(x, mask, scale, causal, log)
        ctx.save_for_backward(y, mask)
        ctx.options = (scale, causal, log)
        ctx.kernels = kernels
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        y, mask = ctx.saved_tensors
        needed = ctx.needs_input_grad[1]
        dx, dmask = _gradients(ctx.kernels, dy, y, mask, ctx.options, needed)
        return dx, dmask, None, None, None, None


_apply_softmax = eager_apply(_Softmax)


def _public_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, *options = inputs
    ctx.save_for_backward(output, mask)
    ctx.options = tuple(options)


def _public_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    y, mask = ctx.saved_tensors
    dx, dmask = _gradients(_RAW, dy, y, mask, ctx.options, ctx.needs_input_grad[1])
    return dx, dmask, None, None, None


_public = public_op(
    f"softmax({_ARGUMENTS}) -> Tensor",
    impl=_RAW.forward,
    fake=_fake_forward,
    setup_context=_public_setup,
    backward=_public_backward,
)


# ---- over the last dimension --------------------------------------------------------------------


def _triton_kernels() -> Kernels:
    from .softmax_triton import softmax_backward, softmax_forward

    return Kernels(softmax_forward, softmax_backward)


def _check_mask(op: str, x: Tensor, mask: Tensor) -> None:
    if mask.device != x.device:
        raise ArgumentValueError(f"{op}: mask is on {mask.device}, expected {x.device}")
    if mask.dtype not in (torch.bool, x.dtype, accumulate_dtype(x)):
        more = or_float32(x.dtype)
        raise ArgumentTypeError(
            f"{op}: mask is {dtype_name(mask.dtype)}, expected bool{',' if more else ' or'}"
            f" {dtype_name(x.dtype)}{more}"
        )
    rank = mask.dim()
    trailing = zip(mask.shape, x.shape[x.dim() - rank :], strict=False)
    if rank > x.dim() or not all(size in (1, expected) for size, expected in trailing):
        raise ArgumentValueError(
            f"{op}: mask has shape {shape_text(mask)}, expected one that broadcasts to"
            f" {shape_text(x)} (the shape of x)"
        )


def _check(op: str, x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> None:
    """What C++ checks on the direct path, with the same messages."""
    check_floating(op, "x", x)
    if not math.isfinite(scale):
        raise ArgumentValueError(f"{op}: scale is {scale:g}, expected a finite number")
    if causal and x.dim() < 2:
        raise ArgumentValueError(f"{op}: x has {x.dim()} dimensions, expected at least 2 (causal)")
    if mask is not None:
        _check_mask(op, x, mask)


def _last_dim(
    op: str, x: Tensor, mask: Tensor | None, scale: float, causal: bool, backend: str
) -> Tensor:
    log = op == "log_softmax"
    compiling = torch.compiler.is_compiling()
    kernels = _RAW if compiling else _DIRECT
    if not has_kernels or backend != "auto" or is_transformed():
        _check(op, x, mask, scale, causal)
        require_backend(op, backend, x)
        if backend == "reference" or is_transformed():
            return _formula.forward(x, mask, scale, causal, log)
        if backend == "triton":
            kernels = _triton_kernels()
    if not torch.is_grad_enabled() or not (
        x.requires_grad or (mask is not None and mask.requires_grad)
    ):
        return kernels.forward(x, mask, scale, causal, log)
    if not compiling:
        return _apply_softmax(x, mask, scale, causal, log, kernels)
    if torch.compiler.is_exporting():
        return _public(x, mask, scale, causal, log)
    return _Softmax.apply(x, mask, scale, causal, log, kernels)


# ---- any dimension ------------------------------------------------------------------------------


def _wrapped_dim(op: str, dim: Any, rank: int) -> int:
    if isinstance(dim, (bool, float, str)) or not hasattr(dim, "__index__"):
        raise ArgumentTypeError(f"{op}: dim is {dim!r}, expected an int")
    index = operator.index(dim)
    bound = max(rank, 1)
    if not -bound <= index < bound:
        raise ArgumentIndexError(
            f"{op}: dim is {index}, expected one of [{-bound}, {bound - 1}]"
            f" (x has {rank} dimensions)"
        )
    return index % bound


def _any_dim(
    op: str,
    x: Tensor,
    dim: int,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    backend: str,
) -> Tensor:
    """Another dimension than the last is brought there and back by copies."""
    if x.dim() == 0:
        return _last_dim(op, x.reshape(1), mask, scale, causal, backend).reshape(())
    if mask is not None and (x.dim() > MAX_RANK or dim != x.dim() - 1):
        _check(op, x, mask, scale, causal)
        mask = mask.expand(x.shape)
    if x.dim() > MAX_RANK:
        flat_mask = None if mask is None else mask.transpose(dim, -1).flatten(0, -3)
        flat = x.transpose(dim, -1).flatten(0, -3)
        y = _last_dim(op, flat, flat_mask, scale, causal, backend)
        return y.reshape(x.transpose(dim, -1).shape).transpose(dim, -1).contiguous()
    if dim == x.dim() - 1:
        return _last_dim(op, x, mask, scale, causal, backend)
    if causal:
        raise ArgumentValueError(f"{op}: dim is {dim}, expected -1 (causal)")
    log_dispatch(f"{op}: dim {dim} is not the last: x is copied, and the result is copied back")
    mask = None if mask is None else mask.transpose(dim, -1)
    y = _last_dim(op, x.transpose(dim, -1).contiguous(), mask, scale, causal, backend)
    return y.transpose(dim, -1).clone(memory_format=torch.contiguous_format)


def _autocast(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What torch.softmax does under autocast: float32, except on the CPU."""
    low = (torch.float16, torch.bfloat16)
    if x.dtype not in low or x.device.type == "cpu":
        return x, mask
    if not torch.is_autocast_enabled(x.device.type):
        return x, mask
    if mask is not None and mask.dtype in low:
        mask = mask.float()
    return x.float(), mask


def _check_types(op: str, x: Any, mask: Any, dtype: Any) -> None:
    if x is None:
        raise ArgumentTypeError(f"{op}: x is NoneType, expected a Tensor")
    check_tensors(op, {"x": x, "mask": mask})
    require_memory(op, {"x": x, "mask": mask})
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"{op}: dtype is {dtype!r}, expected a torch.dtype")


def _options(op: str, scale: Any, causal: Any, backend: Any) -> tuple[Any, bool]:
    """What a call that is not the plainest may give in other types."""
    options = as_number(op, "scale", scale), as_flag(op, "causal", causal)
    if not isinstance(backend, str):
        raise ArgumentTypeError(f"{op}: backend is {backend!r}, expected a str")
    return options


def _run(
    op: str,
    x: Tensor,
    dim: int | None,
    stacklevel: int,
    dtype: torch.dtype | None,
    scale: float,
    mask: Tensor | None,
    causal: bool,
    backend: str,
) -> Tensor:
    if type(scale) is not float or type(causal) is not bool or type(backend) is not str:
        scale, causal = _options(op, scale, causal, backend)
    try:
        if dim is None:
            dim = softmax_dim(op, x.dim(), stacklevel)
        if dtype is not None:
            x = x.to(dtype)
        elif any_autocast():
            x, mask = _autocast(x, mask)
        if dim == -1 and type(dim) is int and 0 < x.dim() <= MAX_RANK:
            return _last_dim(op, x, mask, scale, causal, backend)
        return _any_dim(op, x, _wrapped_dim(op, dim, x.dim()), mask, scale, causal, backend)
    except (RuntimeError, AttributeError, TypeError) as error:
        _check_types(op, x, mask, dtype)
        if is_sharded(x, mask):
            index = _wrapped_dim(op, dim, x.dim())
            return _run_on_shards(op, x, index, stacklevel, scale, mask, causal, backend)
        raise translate(op, error) from None


# ---- DTensor ------------------------------------------------------------------------------------


def _run_on_shards(
    op: str,
    x: Tensor,
    dim: int,
    stacklevel: int,
    scale: float,
    mask: Tensor | None,
    causal: bool,
    backend: str,
) -> Tensor:
    rank = x.dim()
    shards = Shards(op, x, lambda d: d != dim and not (causal and d >= rank - 2))
    rows, own_mask = shards.rows("x", x), shards.beside("mask", mask)
    y: Tensor = shards.like_x(
        _run(op, rows, dim, stacklevel, None, scale, own_mask, causal, backend)
    )
    return y


# ---- jagged nested tensors ----------------------------------------------------------------------


def _jagged_mask(op: str, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask of the values of ``x``."""
    dense = x.dim() - ragged_dim(x) - 1
    if mask is None or (not is_jagged(mask) and mask.dim() <= dense):
        return mask
    if is_jagged(mask) and mask.shape[:-dense] == x.shape[:-dense]:
        return jagged_values(op, "mask", mask)
    raise ArgumentValueError(
        f"{op}: mask has shape {shape_text(mask)}, expected one that broadcasts to"
        f" {tuple(x.shape[-dense:])}, or the sequences of x"
    )


def _run_jagged(
    op: str,
    x: Tensor,
    dim: int | None,
    stacklevel: int,
    dtype: torch.dtype | None,
    scale: float,
    mask: Tensor | None,
    causal: bool,
    backend: str,
) -> Tensor:
    check_tensors(op, {"mask": mask})
    require_memory(op, {"x": x, "mask": mask}, jagged=("x", "mask") if is_jagged(x) else ())
    if dim is None:
        dim = softmax_dim(op, x.dim(), stacklevel)
    ragged, index = ragged_dim(x), _wrapped_dim(op, dim, x.dim())
    if index <= ragged:
        raise ArgumentValueError(
            f"{op}: dim is {dim}, expected a dimension after the ragged one of x, which is {ragged}"
            f" (torch.{op} serves the ragged one)"
        )
    if causal and x.dim() - ragged <= 2:
        raise ArgumentValueError(
            f"{op}: x has {x.dim() - ragged - 1} dimensions after the ragged one, expected at"
            " least 2 (causal)"
        )
    values, mask = jagged_values(op, "x", x), _jagged_mask(op, x, mask)
    y = _run(op, values, index - 1, stacklevel, dtype, scale, mask, causal, backend)
    return jagged_like(x, y)


def softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.softmax`, with a scale and masks.

    Args:
        input: a floating-point tensor, of any strides.
        dim: the dimension that sums to 1. One other than the last costs two copies.
        dtype: ``input`` is cast to it first.
        scale: factor of ``input``.
        mask: broadcasts to ``input``'s shape; boolean (true takes part) or added to
            ``input * scale`` (``input``'s dtype or float32), which may require a gradient.
        causal: hide the future, over the last two dimensions (queries, keys), aligned to the
            bottom right corner.
        backend: ``"auto"``, ``"cuda"``, ``"cpu"``, ``"triton"`` or ``"reference"``.

    Under CUDA autocast the result is float32, as PyTorch's is.
    """
    if has_torch_function_variadic(input, mask):
        if not only_jagged(input, mask):
            return ask_overloads(
                "softmax", softmax, {"x": input, "mask": mask}, input, dim=dim,
                _stacklevel=_stacklevel, dtype=dtype, scale=scale, mask=mask, causal=causal,
                backend=backend,
            )  # fmt: skip
        return _run_jagged(
            "softmax", input, dim, _stacklevel + 1, dtype, scale, mask, causal, backend
        )
    if tracing_state() is not None:
        result: Tensor = _softmax_graph_op(
            input, dim, _stacklevel, dtype, scale=scale, mask=mask, causal=causal, backend=backend
        )
        return result
    return _run("softmax", input, dim, _stacklevel + 1, dtype, scale, mask, causal, backend)


def log_softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """:func:`torch.nn.functional.log_softmax`, with the arguments of :func:`softmax`."""
    if has_torch_function_variadic(input, mask):
        if not only_jagged(input, mask):
            return ask_overloads(
                "log_softmax", log_softmax, {"x": input, "mask": mask}, input, dim=dim,
                _stacklevel=_stacklevel, dtype=dtype, scale=scale, mask=mask, causal=causal,
                backend=backend,
            )  # fmt: skip
        return _run_jagged(
            "log_softmax", input, dim, _stacklevel + 1, dtype, scale, mask, causal, backend
        )
    if tracing_state() is not None:
        result: Tensor = _log_softmax_graph_op(
            input, dim, _stacklevel, dtype, scale=scale, mask=mask, causal=causal, backend=backend
        )
        return result
    return _run("log_softmax", input, dim, _stacklevel + 1, dtype, scale, mask, causal, backend)


_softmax_graph_op = graph_op(softmax)
_log_softmax_graph_op = graph_op(log_softmax)
