# SPDX-License-Identifier: MIT
"""``torch.compile(model, backend="transformer_kernels")``: rewrites the graphs of a model to call
this package's functions, and hands them to a compiler for the rest.

>>> compiled = torch.compile(model, backend="transformer_kernels")
>>> loss = compiled(input_ids=ids, labels=ids).loss  # compiles
>>> print(tfk.graph_plans()[-1])  # what was replaced, and what was left
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from .._errors import ArgumentValueError
from .._library import log_dispatch
from .graph.patterns import ALL
from .graph.rewrite import GraphPlan, Rewriter

_INDUCTOR = "inductor"
_KEPT = 64  # plans

_plans: deque[GraphPlan] = deque(maxlen=_KEPT)


def graph_plans() -> list[GraphPlan]:
    """The plans of the graphs that this process has compiled with the backend, the last one last.

    A plan has ``sites`` and ``refusals``, each with the module's path, the pattern and a function
    or a reason; ``str(plan)`` sums them up.

    >>> options = {"then": "eager", "decide": False}
    >>> norm = torch.nn.LayerNorm(64)
    >>> y = torch.compile(norm, backend="transformer_kernels", options=options)(torch.randn(5, 64))
    >>> tfk.graph_plans()[-1].counts()
    {'norm': 1}
    """
    return list(_plans)


def compile_graph(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend, as torch.compile calls it: rewrites a graph and hands it on.

    Args:
        module: the graph of a frame.
        inputs: its arguments.
        options: ``then``, the backend that gets the rewritten graph (default ``"inductor"``;
            ``"eager"`` runs it as it is); ``patterns``, the names of those to look for (default
            all); ``decide=False`` replaces also what this device is not faster with. Others are
            Inductor's.
        mode: of torch.compile, for Inductor.

    Raises:
        ArgumentValueError: ``patterns`` names one that does not exist.
    """
    options = dict(options or {})
    then, patterns, decide = (
        options.pop(name, default)
        for name, default in (("then", _INDUCTOR), ("patterns", None), ("decide", True))
    )
    _check(patterns)
    trains = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in inputs
    )
    stock = deepcopy(module.graph)
    plan = Rewriter(module, trains, patterns, decide).rewrite()
    _plans.append(plan)
    for line in str(plan).splitlines():
        log_dispatch(f"compile: {line}")
    if not plan.sites:
        return _handed_on(module, inputs, then, options, mode)
    try:
        return _handed_on(module, inputs, then, options, mode)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        warnings.warn(
            f"compile: the graph is compiled without our functions, with which {then} fails:"
            f" {reason}", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return _handed_on(GraphModule(module, stock), inputs, then, options, mode)


def _check(patterns: Any) -> None:
    known = [pattern.name for pattern in ALL]
    unknown = sorted({*(patterns or ())} - {*known})
    if unknown:
        raise ArgumentValueError(
            f"compile: patterns has {unknown[0]!r}, expected some of {', '.join(known)}"
        )


def _handed_on(
    module: GraphModule, inputs: Sequence[Any], then: str, options: dict[str, Any], mode: Any
) -> Callable[..., Any]:
    if then == _INDUCTOR:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        given = {**(list_mode_options(mode) if mode else {}), **options}
        made: Any = compile_fx(module, list(inputs), config_patches=given)
        return made
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(then)(module, list(inputs))
