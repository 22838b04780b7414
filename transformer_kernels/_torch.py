# SPDX-License-Identifier: MIT
"""Private functions of PyTorch that the package needs, and PyTorch's functions as first imported.

A user may put our functions in the place of PyTorch's. When one of ours leaves a call to PyTorch,
it calls the function that stood there when the package was imported, never its replacement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

# ---- functions that others may replace ----------------------------------------------------------

cross_entropy = F.cross_entropy
dropout = F.dropout
embedding = torch.embedding
layer_norm = F.layer_norm
linear = F.linear
log_softmax = torch.log_softmax
relu = torch.relu
rms_norm = F.rms_norm
scaled_dot_product_attention = F.scaled_dot_product_attention
softmax = torch.softmax

softmax_dim: Callable[[str, int, int], int] = F._get_softmax_dim  # type: ignore[attr-defined]


# ---- what follows a call ------------------------------------------------------------------------

any_autocast = torch._C._is_any_autocast_enabled

_functorch_active = torch._C._are_functorch_transforms_active
_functorch = torch._C._functorch
_is_legacy_batched = _functorch.is_legacy_batchedtensor
_tracing_state = torch._C._get_tracing_state  # returns None unless torch.jit.trace follows the call
_is_compiling = torch.compiler.is_compiling
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # true outside of a pass
_REPEATING_WORKSPACES = (":4096:8", ":16:8")


def autocasts(x: torch.Tensor) -> bool:
    """Whether autocast is on for the device of ``x``: of some PyTorch cannot be asked."""
    return any_autocast() and not x.is_meta and torch.is_autocast_enabled(x.device.type)


def is_transformed() -> bool:
    """Whether torch.func, forward-mode differentiation or torch.jit.trace follows the call. They
    can follow a formula in PyTorch, but not a kernel."""
    return _functorch_active() or forward_ad._current_level >= 0 or _tracing_state() is not None


def is_batched(*tensors: Any) -> bool:
    """Whether a tensor stands for many: those of torch.func.vmap, and those of PyTorch's older one,
    which ``is_grads_batched`` makes. Only what goes through the dispatcher knows them."""
    if _is_compiling():
        return False
    return _functorch_active() or any(
        _is_legacy_batched(x) for x in tensors if isinstance(x, torch.Tensor)
    )


def differs_between_samples(x: torch.Tensor) -> bool:
    """Whether a tensor's numbers are others in each sample of torch.func.vmap, so that the host
    cannot read them."""
    while not _is_compiling() and _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def is_eager() -> bool:
    """Whether a call runs as it stands: no graph is made of it, and nothing transforms it."""
    return not (
        _is_compiling()
        or _functorch_active()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
    )


def frees_graph() -> bool:
    """Whether a backward pass runs that no other may follow through the same graph: it frees what
    its nodes saved."""
    return not _keeps_graph()


def has_dispatch_mode() -> bool:
    """Whether a dispatch mode, such as fake tensors or ``make_fx``, watches the ops of a call."""
    return bool(torch._C._len_torch_dispatch_stack() > 0)


def refuses_cublas() -> bool:
    """Whether PyTorch refuses products on CUDA: deterministic algorithms are asked for, and cuBLAS
    is not set up to repeat its results."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
        and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _REPEATING_WORKSPACES
    )


def why_no_compiler(device: torch.device) -> str | None:
    """The reason why torch.compile does not work on this device here; None where it works."""
    try:
        torch.compile(lambda x: x.sin() + 1, dynamic=False)(torch.ones(8, device=device))
    except Exception as error:  # no C++ compiler, no Python headers, no Triton, ...
        lines = str(error).splitlines() or [""]
        return f"torch.compile does not work here ({type(error).__name__}: {lines[0]})"[:200]
    return None


# ---- autograd and the dispatcher ----------------------------------------------------------------


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``apply`` of an autograd function without its Python half, which only serves torch.func and
    takes half of the call's time. torch.compile needs the whole. The function's node calls its
    ``backward`` without asking first which of two the function has."""
    function._backward_cls.apply = function.backward  # type: ignore[attr-defined]
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def with_autograd() -> AbstractContextManager[Any]:
    """Turns autograd on inside the context, also in a kernel that was called from below
    autograd."""
    key = torch._C.DispatchKey.AutogradFunctionality
    return torch._C._SetExcludeDispatchKeyGuard(key, False)


def has_kernel(op: str, key: str) -> bool:
    """Whether the op of this name has a kernel of its own for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op, key)


def is_defined(op: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(op, "")
    except RuntimeError:
        return False
    return True


# ---- kinds of tensors ---------------------------------------------------------------------------

NESTED_MODULE = "torch.nested._internal.nested_tensor"  # of the class of jagged tensors

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_TRANSPARENT = ("FakeTensor", "FunctionalTensor", "DTensor")


def is_a(x: Any, module: str, name: str) -> bool:
    """Whether ``x`` is an instance of a class that may not be imported: some take a second to load.

    Checks the class instead of a property, because ``__torch_function__`` is called for properties.
    """
    return type(x) is not torch.Tensor and isinstance(x, getattr(sys.modules.get(module), name, ()))


def has_gaps(x: Any) -> bool:
    """Whether a jagged nested tensor has unused rows between its sequences."""
    return x.lengths() is not None


def ragged_dim(x: Any) -> int:
    """The dimension of a jagged nested tensor whose length differs between sequences."""
    dim: int = x._ragged_idx
    return dim


def jagged_like(x: Any, values: torch.Tensor) -> torch.Tensor:
    """``values`` as a nested tensor with the sequences of ``x``, so that the two can be added."""
    return torch.nested.nested_tensor_from_jagged(
        values, x.offsets(), jagged_dim=ragged_dim(x), min_seqlen=x._maybe_min_seqlen,
        max_seqlen=x._maybe_max_seqlen,
    )  # fmt: skip


def has_undecided_sizes(values: Iterable[Any]) -> bool:
    """Whether the size of a tensor among the values depends on data that a graph does not know
    yet."""
    tensors = [
        x for x in values if isinstance(x, torch.Tensor) and torch.SymInt in map(type, x.shape)
    ]
    if not tensors:
        return False
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(tensors))


def is_fake(x: Any) -> bool:
    return is_a(x, "torch._subclasses.fake_tensor", "FakeTensor")


def has_numbers(x: torch.Tensor) -> bool:
    """Whether it has more than a shape and a dtype."""
    return not (x.is_meta or is_fake(x))


def has_memory(kind: Any) -> bool:
    """Whether a kernel may read tensors of this class by pointer. Other classes decide themselves
    what an op does."""
    return bool(kind.__torch_dispatch__ is _NO_DISPATCH)


def knows_ops_of_others(kind: Any) -> bool:
    """Whether a tensor of this class accepts ops that PyTorch did not define: they reach its
    kernels, its fake kernels or its sharding rules."""
    return has_memory(kind) or kind.__name__ in _TRANSPARENT


# ---- modules ------------------------------------------------------------------------------------

Forwards = Mapping[type[torch.nn.Module], Callable[..., Any]]

_has_global_hook = torch.nn.modules.module._has_any_global_hook
_PLAIN_PARAMETERS = frozenset((torch.nn.Parameter, torch.Tensor, type(None)))


def forwards_of(*kinds: type[torch.nn.Module]) -> Forwards:
    """The table that :func:`is_bare` reads: each class, with its ``forward``."""
    return {kind: kind.forward for kind in kinds}


def is_bare(module: Any, forwards: Forwards) -> bool:
    """Whether calling the module runs its class's ``forward`` on its parameters and nothing else,
    so that a fused pass may read the parameters and leave out the call.

    It is not bare if an instance of another class stands in its place (adapters, parametrizations,
    quantised layers), if ``forward`` was replaced in the module or in its class, if a hook of the
    module or of all modules would run (pruning is one), or if a parameter is a tensor that brings
    its own operators, as quantised weights do.
    """
    kind = type(module)
    forward = forwards.get(kind)
    if (
        forward is None
        or kind.forward is not forward
        or "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_global_hook()
    ):
        return False
    parameters = module._parameters.values()
    return _PLAIN_PARAMETERS.issuperset(map(type, parameters)) or all(
        map(is_plain_parameter, parameters)
    )


def is_plain_parameter(x: Any) -> bool:
    """Whether the parameter uses PyTorch's operators; a quantised tensor brings its own."""
    return type(x) in _PLAIN_PARAMETERS or type(x).__name__ in _TRANSPARENT


def are_bare(module: torch.nn.Module, parts: Mapping[str, Forwards]) -> bool:
    """Whether the children of these names are bare. Reads ``_modules``, which is faster than
    attributes."""
    children = module._modules
    return all(is_bare(children.get(name), forwards) for name, forwards in parts.items())


_TABLE = forwards_of(torch.nn.Embedding)


def is_table(module: Any) -> bool:
    """Whether it is a bare ``nn.Embedding`` that looks up rows and whose gradient is a plain
    sum."""
    return is_bare(module, _TABLE) and not (
        module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    )


_evaluations: dict[int, int] = {}  # by the module's id: calls in evaluating(), of any thread
_evaluations_lock = threading.Lock()


@contextmanager
def evaluating(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Puts modules into evaluation mode. Calls of several threads may overlap: a module trains
    again when the last call that holds it ends."""
    with _evaluations_lock:
        held = [module for module in modules if module.training or id(module) in _evaluations]
        for module in held:
            _evaluations[id(module)] = _evaluations.get(id(module), 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _evaluations_lock:
            for module in held:
                _evaluations[id(module)] -= 1
                if not _evaluations[id(module)]:
                    del _evaluations[id(module)]
                    module.training = True
