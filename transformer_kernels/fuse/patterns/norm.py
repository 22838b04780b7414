# SPDX-License-Identifier: MIT
"""LayerNorm, RMSNorm and their relatives, found by what they do to the last dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import functional
from ..._torch import any_autocast, is_plain_parameter
from ...ops._dtype import under_autocast
from ...ops.norm.layer_norm import LAYER_NORM
from ...ops.norm.rms_norm import RMS_NORM
from ..cost import bytes_of, meta, recorded_bytes, trial_of_module
from ..floors import usual
from ..hand import take
from ..mixin import Mixin, attribute, leave, only
from ..prove import proven
from ..record import Call, Node, Trace
from ..site import RefusedError, Site
from ._pattern import Pattern, unary

_OPS = frozenset((
    "add", "div", "layer_norm", "mean", "mul", "pow", "rms_norm", "rsqrt", "rsub", "sqrt", "square",
    "sub", "true_divide", "truediv", "var", "__truediv__", "__sub__", "__pow__", "__rsub__",
))  # fmt: skip
_ROOTS = frozenset(("layer_norm", "rms_norm", "rsqrt", "sqrt", "pow", "__pow__"))
NARROW = (torch.float16, torch.bfloat16)
_OPERATIONS = {"layer": LAYER_NORM, "rms": RMS_NORM}


class Form(NamedTuple):
    """Which norm a module computes. Parameters are named; so is epsilon, where an attribute has
    it."""

    kind: str  # "layer" or "rms"
    weight: str | None
    bias: str | None
    eps: str | float
    zero_centered: bool

    def arguments(self, module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Weight, bias and epsilon as the module has them now, and the option."""
        weight = None if self.weight is None else attribute(module, self.weight)
        bias = None if self.bias is None else attribute(module, self.bias)
        eps = getattr(module, self.eps) if isinstance(self.eps, str) else self.eps
        return (weight, bias, eps), {"zero_centered_weight": self.zero_centered}


class Norm(Mixin):
    """The class of a module that is a norm."""

    _tfk_norm: Form
    _tfk_lifted: torch.dtype | None = None  # the result's under autocast, where x was narrower
    _tfk_lowers = False  # whether results have the dtype of autocast instead of stock's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = only(args, kwargs)
        if x is None:
            return super().forward(*args, **kwargs)
        y = take(self, x)
        if y is not None:
            return y
        if not self._tfk_gates["norm"].opens(x):
            return super().forward(x)
        form = self._tfk_norm
        (weight, bias, eps), more = form.arguments(self)
        if not self.takes(x, weight, bias):
            return super().forward(x)
        x = x.to(self._tfk_lifted) if self.lifts(x) else x
        if form.kind == "layer":
            y = functional.layer_norm(x, x.shape[-1:], weight, bias, eps, **more)
        else:
            y = functional.rms_norm(x, x.shape[-1:], weight, eps, bias=bias, **more)
        return under_autocast(y.device.type, y)[0] if self._tfk_lowers else y

    def lifts(self, x: Tensor) -> bool:
        """Whether the norm of these 16-bit rows is wider, as PyTorch's was when the model was
        fused."""
        wide = self._tfk_lifted is not None and not self._tfk_lowers
        return wide and x.dtype in NARROW and any_autocast()

    def takes(self, x: Tensor, *parameters: Tensor | None) -> bool:
        """Whether our result has the dtype of PyTorch's: no cast takes part but the one that was
        seen when the model was fused."""
        casts = x.dtype in NARROW and any_autocast()
        mixes = casts and (self._tfk_lowers or self.lifts(x))
        dtype = torch.float32 if mixes else x.dtype
        for parameter in parameters or self._tfk_norm.arguments(self)[0][:2]:
            if parameter is None:
                continue
            if not is_plain_parameter(parameter):
                leave(self, "norm", "a parameter has operators of its own")
                return False
            if parameter.dtype is not dtype:
                return False
        return mixes or not casts

    def of_sum(
        self, branch: Tensor, residual: Tensor, p: float = 0.0, seed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The norm of the sum, and the sum; the branch may have a dropout. Beside a wider residual
        the norm has the dtype of the branch."""
        (weight, bias, eps), more = self._tfk_norm.arguments(self)
        shape = branch.shape[-1:]
        is_layer = self._tfk_norm.kind == "layer"
        if p or branch.dtype is not residual.dtype:
            terms, drops = (branch, None, residual, weight), (p, p > 0, eps)
            more["seed"] = seed
            if is_layer:
                return functional.bias_dropout_add_layer_norm(*terms, bias, *drops, **more)
            return functional.bias_dropout_add_rms_norm(*terms, *drops, bias=bias, **more)
        if is_layer:
            return functional.add_layer_norm(branch, residual, shape, weight, bias, eps, **more)
        return functional.add_rms_norm(branch, residual, shape, weight, eps, bias=bias, **more)


def _epsilons(module: nn.Module, nodes: list[Node]) -> Iterator[str | float]:
    """The numbers that may be epsilon: attributes of that name, then small constants."""
    for name, value in vars(module).items():
        if "eps" in name and isinstance(value, (int, float)):
            yield name
    for node in nodes:
        for value in (*node.args, *node.kwargs.values()):
            if isinstance(value, float) and 0 < value < 1e-2:
                yield value


class NormPattern(Pattern):
    name = "norm"

    def match(self, call: Call, trace: Trace) -> Site | None:
        module, nodes = call.module, trace.computed(call)
        own = dict(module.named_parameters())
        names = {node.name for node in nodes}
        if list(module.children()) or not unary(call) or len(own) > 2:
            return None
        if not names or not names <= _OPS or not names & _ROOTS:
            return None
        x = trace.values[call.ins[0]]
        if any(tuple(p.shape) != x.shape[-1:] for p in own.values()):
            raise RefusedError("its parameters are not vectors of the last dimension")
        form = self._form(module, nodes, [*own, None, None][:2], x.shape[-1], x.dtype)
        if form is None:
            raise RefusedError(f"no norm does what {type(module).__name__} does")
        op = _OPERATIONS[form.kind].alone
        weight, bias = (own.get(name or "") for name in (form.weight, form.bias))
        moved = bytes_of(op, x=meta(x), weight=weight, bias=bias, y=meta(x))
        y = trace.values[call.outs[0]]
        state = {
            "_tfk_norm": form, "_tfk_lifted": None if y.dtype is x.dtype else y.dtype,
            "_tfk_lowers": not trace.residual_in_fp32,
        }  # fmt: skip
        return Site(
            self.name, call.path, module, Norm, state, function=op.function,
            trial=trial_of_module(module, Norm, state, x),
            key=(form, x.shape[-1], x.dtype, trace.residual_in_fp32), shape=x.shape,
            launches=(len(nodes), 1), features=x.shape[-1],
            bytes=(recorded_bytes(trace, nodes), moved),
            gate=usual(self.name, x.device, calls=len(nodes)),
        )  # fmt: skip

    def _form(
        self, module: nn.Module, nodes: list[Node], names: Any, features: int, dtype: torch.dtype
    ) -> Form | None:
        is_layer = bool({n.name for n in nodes} & {"layer_norm", "sub", "var", "__sub__"})
        kinds = ("layer", "rms") if is_layer else ("rms", "layer")
        for eps in dict.fromkeys((*_epsilons(module, nodes), 1e-5)):
            for kind in kinds:
                for zero_centered in (False, True) if names[0] else (False,):
                    form = Form(kind, names[0], names[1], eps, zero_centered)
                    if proven(module, Norm, {"_tfk_norm": form}, features, dtype):
                        return form
        return None
