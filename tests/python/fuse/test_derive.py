# SPDX-License-Identifier: MIT
"""Derived classes, what is asked again at each call, and code with other globals."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from transformer_kernels.fuse.derive import (
    Gate,
    Link,
    derived,
    innermost,
    meets,
    original,
    rebind,
    stands,
)
from transformer_kernels.fuse.hand import give, misses, take
from transformer_kernels.fuse.mixin import Mixin


class Doubles(Mixin):
    _tfk_keeps_signature = True

    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


class Named(Mixin):
    def forward(self, x):
        return super().forward(x) + 1


def test_a_derived_class_keeps_names_and_signature():
    kind = derived(nn.Linear, Doubles)
    assert kind is derived(nn.Linear, Doubles)
    assert (kind.__name__, kind.__qualname__, kind.__module__) == (
        "Linear", "Linear", "torch.nn.modules.linear",
    )  # fmt: skip
    assert issubclass(kind, nn.Linear)
    assert inspect.signature(kind.forward) == inspect.signature(nn.Linear.forward)
    assert original(derived(kind, Named)) is nn.Linear


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_module_of_derived_classes_is_copied_and_pickled(copied):
    module = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    want = 2 * module(x) + 1
    module.__class__ = derived(derived(nn.Linear, Doubles), Named)
    other = copied(module)
    assert torch.equal(other(x), want)
    assert type(other) is type(module)
    assert other.weight is not module.weight


def test_a_class_with_a_metaclass_of_its_own():
    class Meta(type):
        pass

    class Layer(nn.Linear, metaclass=Meta):
        pass

    module = Layer(3, 3)
    x = torch.randn(2, 3)
    want = 2 * module(x)
    module.__class__ = derived(Layer, Doubles)
    assert isinstance(type(module), Meta)
    assert torch.equal(copy.deepcopy(module)(x), want)


class Half(nn.Module):
    def forward(self, x):
        return x / 2


def _replace_forward(module):
    module.forward = module.forward


CHANGES = {
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda m: m.register_full_backward_hook(lambda *_: None),
    "parametrization": lambda m: parametrize.register_parametrization(m, "weight", Half()),
    "pruning": lambda m: prune.l1_unstructured(m, "weight", 0.5),
    "forward": _replace_forward,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_put_on_a_module_is_noticed(change):
    module = nn.Linear(4, 4)
    assert meets(module, nn.Linear)
    CHANGES[change](module)
    assert not stands(module)


def test_another_class_or_another_forward_of_a_class_is_noticed(monkeypatch):
    class Adapter(nn.Linear):
        pass

    module = nn.Linear(4, 4)
    assert meets(module)
    assert not stands(Adapter(4, 4))
    assert not stands(nn.LayerNorm(4), nn.Linear)
    assert not stands(None)
    monkeypatch.setattr(nn.Linear, "forward", lambda _self, x: x)
    assert not stands(module)


def test_links_are_no_children_and_follow_a_copy():
    holder, target = nn.Identity(), nn.Linear(2, 2)
    holder.__dict__["link"] = Link(target)
    both = copy.deepcopy(nn.ModuleList([holder, target]))
    assert both[0].__dict__["link"].module is both[1]
    assert list(holder.parameters()) == []


def test_gates_ask_rows_and_gradients():
    few, many = torch.zeros(3, 8), torch.zeros(2, 2, 8)
    gate = Gate(rows=4, training=False)
    assert not gate.opens(many)
    with torch.no_grad():
        assert gate.opens(many)
        assert not gate.opens(few)


# ---- code with other globals --------------------------------------------------------------------


def scaled(x, *, by=2.0):
    return math.sqrt(x) * by


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class _Math:
    @staticmethod
    def sqrt(x):
        return -x


def test_the_same_code_with_other_globals():
    other = rebind(scaled, {"math": _Math, "unused": 1})
    assert other(9.0) == -18.0
    assert scaled(9.0) == 6.0
    assert inspect.signature(other) == inspect.signature(scaled)
    assert other.__globals__["__name__"] in sys.modules


def test_modules_of_one_name_keep_their_own_globals():
    """A file that is loaded twice, with another helper."""
    code = "def scaled(x): return math.sqrt(x) * helper()"
    for factor in (2.0, 5.0):
        scope = {"__name__": "modeling", "math": math, "helper": lambda factor=factor: factor}
        exec(code, scope)
        assert rebind(scope["scaled"], {"math": _Math})(9.0) == -9.0 * factor


def test_decorators_are_kept():
    wrapped = decorated(decorated(scaled))
    other = rebind(wrapped, {"math": _Math})
    assert other(9.0, by=1.0) == -9.0
    assert wrapped(9.0) == 6.0
    assert innermost(wrapped) is scaled


# ---- results that are handed over ---------------------------------------------------------------


def test_a_result_is_taken_once_by_the_tensor_it_belongs_to():
    module, x, y = nn.Identity(), torch.ones(2), torch.zeros(2)
    give(module, x, y)
    assert take(module, x) is y
    assert take(module, x) is None
    give(module, x, y)
    assert take(module, x.clone()) is None
    assert misses(module) == 1


def test_under_a_checkpoint_nothing_counts_as_left_in_vain():
    """Its second run would otherwise decide differently from the first."""
    module, x, y = nn.Identity(), torch.ones(2), torch.zeros(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        for _ in range(5):
            give(module, x, y)
    assert take(module, x) is None
    assert misses(module) == 0


def test_a_result_is_dropped_when_anything_changed():
    module, x, y = nn.Identity(), torch.ones(2), torch.zeros(2)
    give(module, x, y)
    x.add_(1)
    assert take(module, x) is None
    give(module, x, y)
    with torch.no_grad():
        assert take(module, x) is None
    give(module, x, y)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert take(module, x) is None
    give(module, x, y)
    assert copy.deepcopy(module).__dict__["_tfk_given"] is None
