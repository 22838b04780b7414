# SPDX-License-Identifier: MIT
"""Situations in which PyTorch reads the model as a graph or as a function of its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .compare import GRADIENT, Results, assert_close, forward, loss_of, tensors, train
from .families import Inputs
from .running import by_the_rule
from .subject import Subject, situation


def without_cache(inputs: Inputs, model: nn.Module) -> Inputs:
    has_cache = hasattr(getattr(model, "config", None), "use_cache")
    return {**inputs, "use_cache": False} if has_cache else inputs


@situation()
def compiled(subject: Subject) -> None:
    """torch.compile of a fused model, in training."""
    pair = subject.pair()
    inputs = without_cache(pair.inputs, pair.stock)
    torch._dynamo.reset()
    try:
        ours = train(torch.compile(pair.ours.train(), backend="aot_eager"), inputs)
    finally:
        torch._dynamo.reset()
    ours = {name.replace("_orig_mod.", ""): x for name, x in ours.items()}
    assert_close(ours, train(pair.stock.train(), inputs))
    assert_close(train(pair.ours, inputs), train(pair.stock, inputs))  # and eager code again


@situation()
def exported(subject: Subject) -> None:
    pair = subject.pair()
    inputs = {name: x for name, x in without_cache(pair.inputs, pair.stock).items()
              if name != "labels" or subject.family.kind in ("translation", "speech")}  # fmt: skip
    try:
        torch.export.export(pair.stock, (), inputs)
    except Exception as error:
        pytest.skip(f"stock's export fails: {type(error).__name__}")
    program = torch.export.export(pair.ours, (), inputs)
    assert_close(forward(program.module(), inputs), forward(pair.stock, inputs))


@situation()
def functional_weights(subject: Subject) -> None:
    """torch.func.functional_call with other weights, and its gradient."""
    pair = subject.pair()
    torch.manual_seed(41)
    weights = {n: x + 0.1 * torch.randn_like(x) for n, x in pair.stock.state_dict().items()
               if x.is_floating_point()}  # fmt: skip

    def run(model: nn.Module, inputs: Inputs) -> Results:
        own = dict(model.named_parameters())
        names = [name for name in weights if name in own]
        leaves = {n: weights[n].to(own[n].dtype).detach().requires_grad_() for n in names}
        output = functional_call(model, leaves, (), inputs)
        loss_of(output).backward()
        found = {name or "y": y.detach() for name, y in tensors(output)}
        return found | {GRADIENT + n: x.grad for n, x in leaves.items() if x.grad is not None}

    by_the_rule(pair, run)
    assert all(x.grad is None for x in pair.ours.parameters())
    by_the_rule(pair, forward)


@situation()
def functional_gradient(subject: Subject) -> None:
    """torch.func.grad of the loss with respect to the weights."""
    pair = subject.pair()

    def run(model: nn.Module) -> Results:
        weights = {name: x.detach() for name, x in model.named_parameters()}

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return loss_of(functional_call(model, weights, (), pair.inputs))

        return {GRADIENT + name: x for name, x in grad(loss)(weights).items()}

    try:
        stock = run(pair.stock)
    except Exception as error:
        pytest.skip(f"stock's fails: {type(error).__name__}")
    assert_close(run(pair.ours), stock)


@situation()
def gradients_of_samples(subject: Subject) -> None:
    """torch.func.vmap of grad: the gradients of each sample."""
    pair = subject.pair()

    def run(model: nn.Module) -> Results:
        weights = {name: x.detach() for name, x in model.named_parameters()}
        batched = {
            n: x for n, x in pair.inputs.items() if isinstance(x, Tensor) and "mask" not in n
        }
        rest = {name: x for name, x in pair.inputs.items() if name not in batched}

        def loss(weights: dict[str, Tensor], sample: Inputs) -> Tensor:
            one = {name: x.unsqueeze(0) for name, x in sample.items()}
            return loss_of(functional_call(model, weights, (), {**one, **rest}))

        found = vmap(grad(loss), in_dims=(None, 0))(weights, batched)
        return {GRADIENT + name: x for name, x in found.items()}

    try:
        stock = run(pair.stock)
    except Exception as error:
        pytest.skip(f"stock's fails: {type(error).__name__}")
    assert_close(run(pair.ours), stock)
