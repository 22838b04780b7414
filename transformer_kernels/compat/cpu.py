# SPDX-License-Identifier: MIT
"""Attention on a CPU, and its benchmark.

The functions call :func:`transformer_kernels.functional.attention`. Its CPU kernels are SIMD code
for the processor's best instruction set, chosen once (``tfk.workbench.properties("cpu")`` says
which), and take float64, float32, bfloat16 and float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from .._errors import (
    ArgumentValueError,
    as_count,
    as_flag,
    as_integer,
    check_tensors,
)
from .._names import explain_names
from ..functional import attention
from ..ops._public import explained

if TYPE_CHECKING:
    from ..profile import Comparison

_CHUNKED = "optimized_cpu_attention"
_TIME = {False: 1, True: 2}  # the dimension of time, by heads_first


def cpu_fused_attention(
    q: Tensor, k: Tensor, v: Tensor, *, heads_first: bool = True, **options: Any
) -> Any:
    """Computes :func:`transformer_kernels.functional.attention` of tensors on a CPU.

    One pass over the keys with the online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867):
    scores never leave the caches, so memory grows with T and not with its square, forward and
    backward.

    Args:
        q, k, v: (B, H, Tq, D), (B, Hk, Tk, D) and (B, Hk, Tk, Dv).
        heads_first: whether tensors are (B, H, T, D), or else (B, T, H, D).
        options: the other arguments of ``attention``.

    Raises:
        ArgumentValueError, ArgumentTypeError: a tensor is not on a CPU, or ``attention`` refuses an
            argument; the message names it.

    >>> q, k, v = torch.randn(3, 2, 8, 64, 32)  # (batch, heads, time, dim)
    >>> tfk.compat.cpu_fused_attention(q, k, v, causal=True).shape
    torch.Size([2, 8, 64, 32])
    """
    _require_cpu("cpu_fused_attention", q, k, v)
    return attention(q, k, v, heads_first=heads_first, **options)


@explained
def optimized_cpu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    chunk_size: int | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    heads_first: bool = True,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Computes :func:`cpu_fused_attention` for ``chunk_size`` queries at a time.

    A chunk reads only the keys that a causal mask or a window lets it see; the result is that of
    one call. Our kernels keep no scores, so chunks change little for them. They bound the memory of
    PyTorch's operations (``backend="reference"``, or a package without its library): at a time
    there are ``chunk_size * Tk`` scores instead of ``Tq * Tk``, in both passes.

    Args:
        chunk_size: queries at a time; None takes all at once.
        heads_first: whether tensors are (B, H, T, D), or else (B, T, H, D).
        backend: ``"auto"``, ``"cpu"`` or ``"reference"``, the formula in PyTorch.

    The other arguments, results and errors are those of
    :func:`transformer_kernels.functional.attention`. Features that depend on a query's place in the
    whole (ALiBi, dropout) are not taken.

    >>> q, k, v = torch.randn(3, 2, 8, 64, 32)
    >>> whole = tfk.compat.cpu_fused_attention(q, k, v)
    >>> chunked = tfk.compat.optimized_cpu_attention(q, k, v, chunk_size=16)
    >>> torch.testing.assert_close(chunked, whole)
    """
    _require_cpu(_CHUNKED, q, k, v)
    heads_first = as_flag(_CHUNKED, "heads_first", heads_first)
    return_lse = as_flag(_CHUNKED, "return_lse", return_lse)
    options: dict[str, Any] = {
        "scale": scale, "softcap": softcap, "sinks": sinks, "heads_first": heads_first,
        "return_lse": return_lse, "backend": backend,
    }  # fmt: skip
    time = _TIME[heads_first]
    queries = q.shape[time] if q.dim() == 4 else 0
    size = queries if chunk_size is None else as_integer(_CHUNKED, "chunk_size", chunk_size)
    if size < 1 and chunk_size is not None:
        raise ArgumentValueError(f"{_CHUNKED}: chunk_size is {size}, expected at least 1")
    if backend not in ("auto", "cpu", "reference"):
        raise ArgumentValueError(
            f"{_CHUNKED}: backend is {backend!r}, expected 'auto', 'cpu' or 'reference'"
        )
    whole: dict[str, Any] = {"causal": causal, "window": window, "bias": bias, "mask": mask}
    if size >= queries:
        return attention(q, k, v, **whole, **options)
    _refuse_bad(q, k, v, **whole, **options)
    seen = _Seen(queries, k.shape[time], causal, window)
    parts = []
    for begin in range(0, queries, size):
        chunk = seen.chunk(begin, min(begin + size, queries))
        tensors = [q.narrow(time, begin, chunk.queries)]
        tensors += [x.narrow(time, chunk.first, chunk.keys) for x in (k, v)]
        options |= {"window": chunk.window, "bias": chunk.of(bias), "mask": chunk.of(mask)}
        parts.append(_run(*tensors, **options))
    if not return_lse:
        return torch.cat(parts, time)
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, time), torch.cat(lses, 2)


def _run(*tensors: Tensor, **options: Any) -> Any:
    """Runs one chunk. The formula recomputes its scores in the backward pass, as the kernels do."""
    if options["backend"] == "reference" and torch.is_grad_enabled():
        return checkpoint(
            attention, *tensors, use_reentrant=False, preserve_rng_state=False, **options
        )
    return attention(*tensors, **options)


def _refuse_bad(*tensors: Tensor, **options: Any) -> None:
    """Raises for arguments that attention refuses, before the first chunk: calls it on meta
    tensors."""

    def blank(x: Any) -> Any:
        return x.detach().to("meta") if isinstance(x, Tensor) else x

    named = {name: blank(x) for name, x in options.items() if name != "backend"}
    attention(*map(blank, tensors), **named)


@dataclass(frozen=True)
class _Chunk:
    """A range of queries, and the range of keys that they can see."""

    begin: int
    queries: int
    first: int
    keys: int
    window: tuple[int, int]

    def of(self, x: Tensor | None) -> Tensor | None:
        """The chunk's part of a mask or a bias, which may be broadcast."""
        if x is None:
            return None
        if x.dim() > 1 and x.shape[-2] > 1:
            x = x.narrow(-2, self.begin, self.queries)
        return x.narrow(-1, self.first, self.keys) if x.dim() and x.shape[-1] > 1 else x


class _Seen:
    """The keys that a query sees: a window around its diagonal, which ends at the last key."""

    def __init__(self, queries: int, keys: int, causal: bool, window: tuple[int, int]) -> None:
        self._queries, self._keys = queries, keys
        self._left, right = window
        self._right = 0 if causal else right

    def chunk(self, begin: int, end: int) -> _Chunk:
        """The chunk of these queries. Its own diagonal ends at its last key, ``ahead`` of where the
        diagonal of the whole ends for it."""
        shift = self._keys - self._queries
        last = self._keys if self._right < 0 else min(self._keys, end + shift + self._right)
        last = max(last, 0)
        first = 0 if self._left < 0 else min(max(0, begin + shift - self._left), last)
        ahead = max(last - end - shift, 0)
        window = (
            self._left if self._left < 0 else self._left + ahead,
            self._right if self._right < 0 else max(self._right - ahead, 0),
        )
        return _Chunk(begin, end - begin, first, last - first, window)


@explain_names
class CPUKernelBenchmark:
    """Times ways to compute attention on this CPU, or other functions, after verifying each.

    Args:
        batch, heads, time, dim: sizes of the random tensors that :meth:`compare_implementations`
            draws.
        dtype: their dtype.
        causal: whether the default implementations hide the future.

    >>> benchmark = tfk.compat.CPUKernelBenchmark(heads=2, time=32, dim=16)
    >>> found = benchmark.compare_implementations(seconds=0.01)
    >>> found.refused
    {}
    """

    def __init__(
        self,
        batch: int = 1,
        heads: int = 8,
        time: int = 512,
        dim: int = 64,
        *,
        dtype: torch.dtype = torch.float32,
        causal: bool = False,
    ) -> None:
        sizes = {"batch": batch, "heads": heads, "time": time, "dim": dim}
        self.shape = tuple(as_count("CPUKernelBenchmark", *size) for size in sizes.items())
        self.dtype = dtype
        self.causal = as_flag("CPUKernelBenchmark", "causal", causal)

    def implementations(self) -> dict[str, Callable[..., Any]]:
        """Functions of q, k and v (B, H, T, D) by name: PyTorch's operations, PyTorch's fused call,
        our kernels, and our kernels in chunks of an eighth of T."""
        causal, chunk = self.causal, max(1, self.shape[2] // 8)

        def operations(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attention(q, k, v, causal=causal, heads_first=True, backend="reference")

        def fused(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return cpu_fused_attention(q, k, v, causal=causal)

        def chunked(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return optimized_cpu_attention(q, k, v, causal=causal, chunk_size=chunk)

        return {
            "operations": operations, "pytorch": fused, "cpu_fused_attention": ours,
            "optimized_cpu_attention": chunked,
        }  # fmt: skip

    def compare_implementations(
        self,
        implementations: Mapping[str, Callable[..., Any]] | None = None,
        *inputs: Any,
        **options: Any,
    ) -> Comparison:
        """Calls :func:`transformer_kernels.profile.compare_implementations` on this CPU.

        Args:
            implementations: functions by name; by default :meth:`implementations`, verified against
                PyTorch's operations in float64.
            inputs: their arguments; by default random q, k and v.
            options: other arguments of :func:`transformer_kernels.profile.compare_implementations`.
        """
        from ..profile import compare_implementations

        if not inputs:
            inputs = tuple(torch.randn(self.shape, dtype=self.dtype) for _ in range(3))
        if implementations is None:
            implementations = self.implementations()
            options.setdefault("reference", implementations["operations"])  # in float64
        return compare_implementations(implementations, inputs, **options)


def _require_cpu(op: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    tensors = {"q": q, "k": k, "v": v}
    check_tensors(op, tensors)
    for name, x in tensors.items():
        if x.device.type != "cpu":
            raise ArgumentValueError(f"{op}: {name} is on {x.device}, expected cpu")
