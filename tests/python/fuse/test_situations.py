# SPDX-License-Identifier: MIT
"""Each situation fails for a fuser that does what it is there to find."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import transformer_kernels as tfk

from .zoo import changing, compiling, copying, running, wrapping
from .zoo.families import BY_NAME, LEAST
from .zoo.subject import Subject

FAMILY = BY_NAME["llama"]


class Plan:
    sites = refusals = ()

    def counts(self):
        return LEAST["llama"]

    def to_json(self):
        return ""


class Faulty:
    """A fuser that gives each module of one class a derived class, and its faults."""

    def __init__(self, kind, mixin, also=lambda _model: None):
        self.kind, self.mixin, self.also = kind, mixin, also
        self.name = also.__name__ if mixin is Stock else mixin.__name__

    def fuse(self, model, inputs, **options):
        for module in model.modules():
            if type(module).__name__ == self.kind and not isinstance(module, self.mixin):
                stock = type(module)
                names = {"__module__": stock.__module__, "__qualname__": stock.__qualname__}
                module.__class__ = type(stock.__name__, (self.mixin, stock), names)
        self.also(model)
        return Plan()

    def unfuse(self, model):
        for module in model.modules():
            if isinstance(module, self.mixin):
                module.__class__ = type(module).__mro__[2]


class Stock:
    pass


class Inexact:
    def forward(self, x):
        return super().forward(x) * (1 + 1e-5)


class _Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return dy * 1.001


class WrongGradient:
    def forward(self, x):
        return _Steeper.apply(super().forward(x))


class KeptWeight:
    def forward(self, x):
        kept = self.__dict__.setdefault("_kept", self.weight.detach().clone())
        return super().forward(x) / self.weight * kept


class FirstParameter:
    """Reads the parameter that was there when it was fused, whatever stands there now."""

    def forward(self, x):
        return super().forward(x) / self.weight * self._kept[0]


def keep_parameters(model):
    for module in model.modules():
        if type(module).__name__ == NORM:
            module._kept = [module.weight]


class SkippedChildren:
    def forward(self, x):
        gate, up = (F.linear(x, m.weight) for m in (self.gate_proj, self.up_proj))
        return F.linear(F.silu(gate) * up, self.down_proj.weight)


class OneShape:
    def forward(self, x):
        tokens = self.__dict__.setdefault("_tokens", x.shape[1])
        return super().forward(x) * (1 if x.shape[1] == tokens else 1.001)


class Undone:
    """Hands a result to the next call, whatever its input is."""

    def forward(self, x):
        ready, self.__dict__["_ready"] = self.__dict__.get("_ready"), super().forward(x)
        return self._ready if ready is None or ready.shape != x.shape else ready


class InEval:
    def forward(self, x):
        return super().forward(x) * (0.999 if self.training else 1)


class Narrow:
    """Is wrong where bfloat16 takes part."""

    def forward(self, x):
        y = super().forward(x)
        return y * 1.2 if torch.bfloat16 in (x.dtype, y.dtype) else y


class OtherName:
    def forward(self, hidden):
        return super().forward(hidden)


def shares(model):
    """Modules refer to the original's parameters: a copy does too."""
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            weight, stock = module.weight, module.forward
            module.forward = lambda x, weight=weight, stock=stock: stock(x) * (weight / weight)


def draws(_model):
    torch.rand(1)


def switches(model):
    model.eval()


def sets_the_configuration(model):
    model.config._attn_implementation = "eager"
    model.config.attention_dropout = 0.5


def marks(model):
    vars(model.model.norm)[f"mark {len(vars(model.model.norm))}"] = True


def adds_a_buffer(model):
    model.model.norm.register_buffer("statistics", torch.zeros(1))


NORM, MLP = "LlamaRMSNorm", "LlamaMLP"
FAULTS = [
    (running.inference, Faulty(NORM, Inexact)),
    (running.training, Faulty(NORM, WrongGradient)),
    (running.training, Faulty(NORM, InEval)),
    (running.other_shapes, Faulty(NORM, OneShape)),
    (running.generation, Faulty(NORM, Undone)),
    (running.a_cache_by_hand, Faulty(NORM, OneShape)),
    (running.padded_training, Faulty(NORM, WrongGradient)),
    (running.packed_sequences, Faulty(NORM, WrongGradient)),
    (running.checkpointing, Faulty(NORM, WrongGradient)),
    (running.bfloat16, Faulty(NORM, Narrow)),
    (running.autocast, Faulty(MLP, Narrow)),
    (running.calls_by_name, Faulty(NORM, OtherName)),
    (running.threads, Faulty(NORM, Undone)),
    (copying.structure, Faulty(NORM, Stock, adds_a_buffer)),
    (copying.the_root, Faulty("LlamaForCausalLM", Stock)),
    (copying.unfused, Faulty(NORM, Stock, marks)),
    (copying.the_recorded_run, Faulty(NORM, Stock, draws)),
    (copying.the_recorded_run, Faulty(NORM, Stock, switches)),
    (copying.the_recorded_run, Faulty(NORM, Stock, sets_the_configuration)),
    (copying.fused_twice, Faulty(NORM, Stock, marks)),
    (copying.deep_copy, Faulty(NORM, Stock, shares)),
    (copying.weights_loaded_later, Faulty(NORM, KeptWeight)),
    (copying.optimizer_steps, Faulty(NORM, KeptWeight)),
    (copying.gradient_accumulation, Faulty(NORM, WrongGradient)),
    (compiling.functional_weights, Faulty(NORM, FirstParameter, keep_parameters)),
    (compiling.functional_gradient, Faulty(NORM, FirstParameter, keep_parameters)),
    (changing.hooks_that_watch, Faulty(MLP, SkippedChildren)),
    (changing.hooks_that_change, Faulty(MLP, SkippedChildren)),
    (changing.hooks_that_change_inputs, Faulty(MLP, SkippedChildren)),
    (changing.hooks_that_change_gradients, Faulty(MLP, SkippedChildren)),
    (changing.backward_hooks_that_watch, Faulty(MLP, SkippedChildren)),
    (changing.hooks_of_all_modules, Faulty(MLP, SkippedChildren)),
    (wrapping.lora_after, Faulty(MLP, SkippedChildren)),
    (wrapping.lora_before, Faulty(MLP, SkippedChildren)),
]


@pytest.mark.parametrize(
    ("situation", "fuser"), FAULTS, ids=[f"{s.__name__}-{f.name}" for s, f in FAULTS]
)
def test_a_fault_is_found(situation, fuser, monkeypatch):
    monkeypatch.setattr(tfk, "fuse", fuser.fuse)
    monkeypatch.setattr(tfk, "unfuse", fuser.unfuse)
    with pytest.raises(AssertionError):
        situation(Subject(FAMILY, places=None))


@pytest.mark.parametrize("situation", dict.fromkeys(situation for situation, _ in FAULTS))
def test_a_fuser_that_changes_nothing_passes(situation, monkeypatch):
    monkeypatch.setattr(tfk, "fuse", lambda _model, _inputs, **_options: Plan())
    monkeypatch.setattr(tfk, "unfuse", lambda _model: None)
    situation(Subject(FAMILY, places=2))


def test_sites_that_are_not_found_are_a_failure(monkeypatch):
    monkeypatch.setattr(tfk, "fuse", lambda _model, _inputs, **_options: Plan())
    monkeypatch.setattr(Plan, "counts", lambda _plan: {**LEAST["llama"], "norm": 4})
    with pytest.raises(AssertionError, match=r"'norm': \(4, 5\)"):
        running.inference(Subject(FAMILY))
