# SPDX-License-Identifier: MIT
"""Operations of a graph in one spelling, whether a program called a function, a method or an
operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import functional as F

CASTS = frozenset(("bfloat16", "contiguous", "double", "float", "half", "to", "type", "type_as"))
VIEWS = frozenset(("flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view"))
MOVES = CASTS | VIEWS | {"expand", "getitem", "permute", "transpose"}

_LIBRARIES = ("_operator", "builtins", "torch")
_SPELLINGS = {
    "__and__": "and_", "multiply": "mul", "swapaxes": "transpose", "true_divide": "div",
    "truediv": "div",
}  # fmt: skip
IN_PLACE = {"iadd": "add", "imul": "mul", "itruediv": "div"}  # arithmetic, as it is out of place
_IN_PLACE_OPERATORS = frozenset((
    "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift",
    "isub", "itruediv", "ixor", "setitem",
))  # fmt: skip
_CONTEXTS = {
    "_enter_autocast": 1, "_exit_autocast": -1, "_enter_inference_mode": 1,
    "_exit_inference_mode": -1,
}  # fmt: skip


def name_of(node: Node) -> str:
    """The operation's name; empty for what is no call of PyTorch's own."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        module = getattr(node.target, "__module__", None) or ""
        known = module.partition(".")[0] in _LIBRARIES
        name = getattr(node.target, "__name__", "") if known else ""
    else:
        return ""
    return _SPELLINGS.get(name, name)


def is_tensor(x: Any) -> TypeGuard[Node]:
    """Whether an argument is a node whose value is a tensor."""
    return isinstance(x, Node) and isinstance(x.meta.get("example_value"), Tensor)


def example(node: Node) -> Tensor:
    """The tensor without numbers that stands for the node's value."""
    value: Tensor = node.meta["example_value"]
    return value


def size(n: Any) -> int:
    """A dimension as a number, of a symbol the one that it stood for when the graph was made; no
    guard comes of asking."""
    return n if isinstance(n, int) else int(n.node.hint)


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of the node's value, as :func:`size` says it."""
    return tuple(map(size, example(node).shape))


def are_equal(a: Any, b: Any) -> bool:
    """Whether two dimensions are the same number in every call."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def tensors_of(node: Node) -> list[Node]:
    """The tensors that an operation reads, in the order of its arguments."""
    return [x for x in node.all_input_nodes if is_tensor(x)]


@cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C++
        return None


def bound(node: Node) -> Mapping[str, Any]:
    """The arguments of a call of a Python function by name, defaults included."""
    signature = _signature(node.target)
    if node.op != "call_function" or signature is None:
        return node.kwargs
    arguments = signature.bind(*node.args, **node.kwargs)
    arguments.apply_defaults()
    return arguments.arguments


def is_mutating(node: Node) -> bool:
    """Whether the operation may write to memory that another value has."""
    name = name_of(node)
    if name in _IN_PLACE_OPERATORS or "out" in node.kwargs:
        return True
    if name.endswith("_") and not name.startswith("__") and name not in ("and_", "or_"):
        return True
    is_function = getattr(node.target, "__module__", "") == F.__name__
    return bool((bound(node) if is_function else node.kwargs).get("inplace", False))


def inside_contexts(nodes: Iterator[Node]) -> set[Node]:
    """The nodes that run with another autocast or grad mode than the graph as a whole."""
    found: set[Node] = set()
    depth, without_grad = 0, False
    for node in nodes:
        name = name_of(node)
        depth += _CONTEXTS.get(name, 0)
        if name == "_set_grad_enabled":
            without_grad = not node.args[0]
        if depth or without_grad:
            found.add(node)
    return found


def dropped(node: Any) -> tuple[Any, float]:
    """The tensor that a dropout reads, and its probability where it drops; of another node the node
    itself, and 0."""
    if not isinstance(node, Node) or name_of(node) != "dropout":
        return node, 0.0
    given = bound(node)
    if "input" not in given or not isinstance(given.get("p"), (int, float)):
        return node, 0.0
    return given["input"], float(given["p"]) if given.get("training", True) else 0.0


def behind(node: Any, names: frozenset[str]) -> Any:
    """The value that operations of these names move or cast to this one."""
    while isinstance(node, Node) and name_of(node) in names and node.args:
        node = node.args[0]
    return node


def only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def ahead(node: Node, names: frozenset[str]) -> Node:
    """The value that this one becomes by moves or casts of these names, and nothing else."""
    user = only_user(node)
    while user is not None and name_of(user) in names and user.args[0] is node:
        node, user = user, only_user(user)
    return node


def moved_again(graph: Graph, start: Node, end: Node, y: Node) -> Node:
    """Moves ``y`` as the graph moves ``start`` to ``end``."""
    path: list[Node] = []
    while end is not start:
        path.append(end)
        end = end.args[0]  # type: ignore[assignment]
    for node in reversed(path):
        y = graph.call_method(str(node.target), (y, *node.args[1:]), node.kwargs)
    return y


def keeps_shape(node: Node) -> bool:
    """Whether the operation is a view of the same shape in every call."""
    if name_of(node) not in VIEWS or not is_tensor(node.args[0]):
        return False
    return are_same(example(node).shape, example(node.args[0]).shape)


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are the same in every call."""
    return len(a) == len(b) and all(map(are_equal, a, b))


def constant(x: Any) -> float | None:
    """A number that an operation is given; None for a tensor or a symbol."""
    return float(x) if type(x) in (int, float) else None


def number_and_node(node: Any) -> tuple[Node, float] | None:
    """The tensor and the number of an operation that takes one of each, in any order."""
    for x, c in (node.args[:2], node.args[1::-1]):
        number = constant(c)
        if is_tensor(x) and number is not None:
            return x, number
    return None


def call(graph: Graph, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Writes a call to a graph."""
    return graph.call_function(function, args, kwargs)


def where_of(node: Node) -> str:
    """The path of the module whose forward computes the value; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    for prefix in ("L['self']", "L['fn']", "L['args'][0]"):
        path = path.removeprefix(prefix)
    return path.lstrip(".").replace("_modules['", "").replace("']", "")
