# SPDX-License-Identifier: MIT
"""Linear layers around an activation, inside one module: the parts of MLPs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from ... import functional
from ..derive import meets, original, stands
from ..mixin import attribute
from ..record import Call, Node, Trace
from ..site import RefusedError
from .activation import activation_of

PRODUCTS = frozenset(("addmm", "linear"))
_LOOSE: dict[str, Callable[..., Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}  # activations that are no modules
_NO_MLP = frozenset(("add", "layer_norm", "multi_head_attention_forward", "rms_norm",
                     "scaled_dot_product_attention"))  # fmt: skip
_MOST_NODES = 16


def conv1d() -> Any:
    """Hugging Face's linear layer that stores its weight as (inputs, outputs); None where no
    program of the process has it."""
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)


def is_linear(module: Any) -> bool:
    """Whether the module was a plain linear layer before fusing, by its exact class."""
    kind = original(type(module))
    return kind is nn.Linear or (kind is conv1d() and kind is not None)


def weight_and_bias(module: Any) -> tuple[Tensor, Tensor | None]:
    """Parameters of a linear layer, the weight as (outputs, inputs)."""
    weight = attribute(module, "weight")
    if not isinstance(module, nn.Linear):
        weight = weight.t()
    return weight, attribute(module, "bias")


class Parts(NamedTuple):
    """The modules that a fused MLP leaves out, by name below it, with their classes."""

    linears: tuple[str, ...]  # in the order of the op's arguments
    activation: str  # of functional.linear_act or functional.gated_mlp
    behind: str | None  # the dropout of the result
    between: tuple[str, ...]  # dropouts that are no part of the op
    idle: tuple[str, ...]  # modules that gave back their input in evaluation
    kinds: tuple[tuple[str, type], ...]  # of all of them, the activation's module, and idle ones

    def why_not(self, module: nn.Module) -> str | None:
        """The reason why PyTorch's own code has to run a call; None where there is none."""
        for name, kind in self.kinds:
            if not stands(part(module, name), kind):
                return f"{name} is no longer as it was when it was fused"
        if module.training and any(_drops(part(module, name)) for name in self.between):
            return "dropout stands between its products"
        if module.training and any(type(part(module, n)) is not nn.Identity for n in self.idle):
            return "a module between its products may act in training"
        return None

    def parameters(self, module: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
        return [weight_and_bias(part(module, name)) for name in self.linears]

    def dropped(self, module: nn.Module, y: Tensor) -> Tensor:
        """The result behind its dropout."""
        if self.behind is None or not module.training:
            return y
        dropout: Any = part(module, self.behind)
        return functional.dropout(y, dropout.p, dropout.training) if dropout.p else y


def _drops(module: Any) -> bool:
    return bool(module.p) and bool(module.training)


def part(module: nn.Module, name: str) -> Any:
    """The module of this name below another; None where there is none any more."""
    found: Any = module._modules.get(name)
    if found is not None or "." not in name:
        return found
    found = module
    for step in name.split("."):
        found = None if found is None else found._modules.get(step)
    return found


@dataclass
class Found:
    """The products of a call, and what stands between them."""

    linears: list[Node]
    own: list[Node]  # computed by the module's own forward, without the activation
    first: Node  # the product that the activation is applied to
    activation: str
    activated: int  # the activation's value
    names: dict[str, str]  # of the linear layers' paths, below the module
    activation_module: str | None
    dropouts: list[Call]
    idle: list[Call]  # of modules that give back their input, as nn.Identity does


def find_products(call: Call, trace: Trace) -> Found | None:
    """The linear layers and the one activation of a call that is nothing else."""
    nodes = trace.computed(call)
    linears = [node for node in nodes if node.name in PRODUCTS]
    own = [node for node in nodes if node.path == call.path]
    inside = trace.calls_in(call)
    if len(call.ins) != 1 or len(call.outs) != 1 or not 1 <= len(linears) <= 3 or not inside:
        return None
    if len(nodes) > _MOST_NODES or any(node.name in _NO_MLP for node in own):
        return None
    modules = dict(call.module.named_modules())
    names = {node.path: node.path[len(call.path) + 1 if call.path else 0 :] for node in linears}
    dropouts = [c for c in inside if isinstance(c.module, nn.Dropout)]
    rest = [
        c for c in inside
        if not any(node.path == c.path for node in linears) and c not in dropouts
    ]  # fmt: skip
    idle = [c for c in rest if c.ins == c.outs]
    others = [c for c in rest if c not in idle]
    loose = [node for node in own if node.name not in ("mul", "dropout")]
    if len(others) + len(loose) != 1 or (others and len(others[0].outs) != 1):
        return None
    if others:
        activation = activation_of(others[0].module.forward)
        before, after = others[0].ins[0], others[0].outs[0]
    else:
        activation = loose_activation(loose[0])
        before, after = loose[0].ins[0], loose[0].outs[0]
    first = trace.source_node(before)
    if first not in linears:
        return None
    if activation is None:
        raise RefusedError("no activation of ours gives the values of the one in it")
    for path, name in names.items():
        if not is_linear(modules[name]):
            raise RefusedError(f"{path} is a {type(modules[name]).__name__}, no plain linear layer")
    prefix = len(call.path) + 1 if call.path else 0
    return Found(
        linears, [node for node in own if node not in loose], first, activation, after, names,
        others[0].path[prefix:] if others else None, dropouts, idle,
    )  # fmt: skip


def loose_activation(node: Node) -> str | None:
    options = {k: v for k, v in node.kwargs.items() if k == "approximate"}
    function = _LOOSE.get(node.name)
    return None if function is None else activation_of(partial(function, **options))


def parts_of(call: Call, found: Found, linears: list[Node], activation: str) -> Parts:
    """Names the parts; ``linears`` are in the order of the op's arguments."""
    prefix = len(call.path) + 1 if call.path else 0
    last = found.linears[-1]
    behind = [c for c in found.dropouts if c.first > last.index and c.outs == call.outs]
    between = [c for c in found.dropouts if c not in behind[:1]]
    named = [found.names[node.path] for node in linears]
    others = [c.path[prefix:] for c in (*behind[:1], *between, *found.idle)]
    activated = [found.activation_module] if found.activation_module else []
    modules = dict(call.module.named_modules())
    kinds = {name: original(type(modules[name])) for name in (*named, *others, *activated)}
    for name in kinds:
        if not meets(modules[name]):
            raise RefusedError(
                f"{name} has a hook, an adapter or a quantised weight", "fuse before that"
            )
    return Parts(
        tuple(named), activation, behind[0].path[prefix:] if behind else None,
        tuple(c.path[prefix:] for c in between), tuple(c.path[prefix:] for c in found.idle),
        tuple(kinds.items()),
    )  # fmt: skip


def is_one_result(call: Call, trace: Trace, value: int) -> bool:
    """Whether the call gives this value, moved at most."""
    return trace.source(call.outs[0]) == value


def operand(product: Node) -> int:
    """The value that a product multiplies with its weight."""
    return product.ins[1 if product.name == "addmm" else 0]
