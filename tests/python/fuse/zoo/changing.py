# SPDX-License-Identifier: MIT
"""Situations in which a module is hooked into, replaced, pruned or quantised, before or after."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_kernels.testing.modules import CHANGES, quantize

from .compare import Results, assert_close, forward, tensors, train
from .families import Inputs
from .subject import Subject, situation


def leaves(model: nn.Module) -> list[str]:
    """The modules without children, by name, less those that a run never calls."""
    return [name for name, module in model.named_modules() if name and not [*module.children()]]


def shuffled(subject: Subject, names: list[str]) -> list[str]:
    """The places in an order of the family's own, so that a few of them differ by family."""
    return random.Random(subject.family.name).sample(names, len(names))


def larger(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output * 1.5 if output.is_floating_point() else output
    if type(output) is tuple and output and isinstance(output[0], Tensor):
        return (larger(output[0]), *output[1:])
    return output


# ---- hooks --------------------------------------------------------------------------------------


@situation()
def hooks_that_watch(subject: Subject) -> None:
    """Hooks on every module at once: called as often, in the same order, with the same values."""
    pair = subject.pair()
    logs: list[tuple[list, Results]] = [([], {}), ([], {})]

    def watch(name: str, log: list, values: Results) -> tuple[Callable, Callable]:
        def before(_module: nn.Module, _args: Any, named: Any) -> None:
            log.append((name, "before", sorted(named)))

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            for inner, x in tensors(output):
                values[f"{len(log)} {name} {inner}"] = x.detach().clone()
            log.append((name, "after"))

        return before, after

    for model, (log, values) in zip(pair.both, logs, strict=True):
        for name, module in model.named_modules():
            before, after = watch(name, log, values)
            module.register_forward_pre_hook(before, with_kwargs=True)
            module.register_forward_hook(after)
    ours, stock = pair.in_both(lambda model: forward(model, pair.inputs))
    assert logs[0][0] == logs[1][0]
    assert_close(logs[0][1], logs[1][1])
    assert_close(ours, stock)


@situation()
def backward_hooks_that_watch(subject: Subject) -> None:
    """Full backward hooks on every module at once."""
    pair = subject.pair()
    logs: list[tuple[list[str], Results]] = [([], {}), ([], {})]

    def watch(name: str, log: list[str], values: Results) -> Callable:
        def after(_module: nn.Module, dinputs: Any, doutputs: Any) -> None:
            for inner, x in tensors({"in": dinputs, "out": doutputs}):
                values[f"gradient of {name} {inner}"] = x.detach().clone()
            log.append(name)

        return after

    for model, (log, values) in zip(pair.both, logs, strict=True):
        for name, module in model.named_modules():
            if module is not model:
                module.register_full_backward_hook(watch(name, log, values))
    try:
        stock = train(pair.stock, pair.inputs)
    except RuntimeError as error:
        pytest.skip(f"stock fails: {error}")
    ours = train(pair.ours, pair.inputs)
    assert sorted(logs[0][0]) == sorted(logs[1][0])
    assert_close(logs[0][1], logs[1][1])
    assert_close(ours, stock)


def _one_at_a_time(
    subject: Subject, names: list[str], change: Callable[[nn.Module, str], Any], run: Any
) -> None:
    """Changes one module in both models, and undoes it: ours has to follow stock each time."""
    pair = subject.pair()
    done = 0
    for name in shuffled(subject, names):
        handles = [change(model, name) for model in pair.both]
        if _runs(pair.stock, subject.inputs()):
            follow(subject, name, pair.ours, pair.stock, run)
            done += 1
        for handle in handles:
            handle.remove()
        if done == subject.places:
            break
    assert done


def _runs(
    stock: nn.Module, inputs: Inputs, act: Callable[[nn.Module], Any] = lambda _model: None
) -> bool:
    """Changes stock; whether it runs then. It may ask a layer for what the changed one has not,
    and write in place what a hook wants to see."""
    try:
        act(stock)
        for _ in range(2):  # a second run may find a graph that the first one has left
            train(stock, inputs)
    except Exception:
        return False
    return True


def follow(
    subject: Subject, name: str, ours: nn.Module, stock: nn.Module, run: Any,
    logs: Sequence[list[str]] = (), attempt: int = 1,
) -> None:  # fmt: skip
    """Compares the models with the layer of that name changed: their results, and what each layer
    has logged. Where they differ at a kink, they are given other inputs."""
    inputs = subject.inputs(seed=1000 * attempt)
    for log in logs:
        log.clear()
    try:
        assert_close(run(ours, inputs), run(stock, inputs))
        assert all(log == logs[0] for log in logs), f"called {logs}"
    except AssertionError as error:
        if attempt >= subject.attempts:
            raise AssertionError(f"{name} changed: {error}") from None
        follow(subject, name, ours, stock, run, logs, attempt + 1)


@situation()
def hooks_that_change(subject: Subject) -> None:
    """A hook on one module multiplies what the module returns."""

    def hook(model: nn.Module, name: str) -> Any:
        return model.get_submodule(name).register_forward_hook(lambda _m, _a, y: larger(y))

    names = [name for name, _ in subject.family.build().named_modules() if name]
    _one_at_a_time(subject, names, hook, forward)


@situation()
def hooks_that_change_inputs(subject: Subject) -> None:
    def hook(model: nn.Module, name: str) -> Any:
        return model.get_submodule(name).register_forward_pre_hook(
            lambda _module, args: tuple(larger(x) for x in args)
        )

    names = [name for name, _ in subject.family.build().named_modules() if name]
    _one_at_a_time(subject, names, hook, forward)


@situation()
def hooks_that_change_gradients(subject: Subject) -> None:
    def hook(model: nn.Module, name: str) -> Any:
        return model.get_submodule(name).register_full_backward_hook(
            lambda _module, dinputs, _doutputs: tuple(
                None if x is None else 1.5 * x for x in dinputs
            )
        )

    _one_at_a_time(subject, leaves(subject.family.build()), hook, train)


@situation()
def hooks_of_all_modules(subject: Subject) -> None:
    """A hook that PyTorch calls for every module of the process."""
    pair = subject.pair()
    logs: list[list[str]] = []

    def run(model: nn.Module) -> Results:
        logs.append([])
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, _args, y: logs[-1].append(type(module).__name__) or larger(y)
        )
        try:
            return forward(model, pair.inputs)
        finally:
            handle.remove()

    ours, stock = pair.in_both(run)
    assert logs[0] == logs[1]
    assert_close(ours, stock, 1e-4)


# ---- other layers -------------------------------------------------------------------------------


def _changed(subject: Subject, change: str, before: bool) -> None:
    """One layer after another is changed, each in a new pair."""
    fused = None if before else subject.pair()
    done = 0
    for name in shuffled(subject, leaves(subject.family.build())):
        logs: list[list[str]] = [[], []]

        def act(model: nn.Module, log: list[str], name: str = name) -> None:
            parent, _, leaf = name.rpartition(".")
            torch.manual_seed(5)
            CHANGES[change](model.get_submodule(parent), leaf, log)

        stock, inputs = subject.family.build(), subject.inputs()
        if not _runs(stock, inputs, functools.partial(act, log=logs[1])):
            continue
        if fused is None:
            ours = subject.family.build()
            act(ours, logs[0])
            subject.fuse(ours, inputs)
        else:
            ours = copy.deepcopy(fused.ours)
            act(ours, logs[0])
        follow(subject, name, ours, stock, train, logs)
        done += 1
        if done == subject.places:
            break
    assert done


def _register(change: str) -> None:
    for before in (False, True):

        def run(subject: Subject, before: bool = before) -> None:
            _changed(subject, change, before)

        run.__name__ = f"{change} {'before' if before else 'after'}"
        situation()(run)


for _change in ("adapter", "replaced forward", "derived class", "pruned", "parametrization",
                "weight_norm"):  # fmt: skip
    _register(_change)


READS_NO_WEIGHT = ("sum_norm",)  # it takes what the layer returns


def _quantizable(model: nn.Module) -> list[str]:
    return [
        name for name, module in model.named_modules()
        if type(module) is nn.Linear and not name.endswith(("lm_head", "decoder"))
    ]  # fmt: skip


@situation(lambda family: family.name not in ("gpt2", "falcon", "falcon alibi"),
           "its linear layers are classes of its own")  # fmt: skip
def quantised_base(subject: Subject) -> None:
    """A quantised layer runs as it is, wherever it stands, and the plan says so."""
    names = _quantizable(subject.family.build())
    if not names:
        pytest.skip("has no linear layers of PyTorch's")
    fused = subject.pair()
    done = 0
    for name in shuffled(subject, names):
        parent, _, leaf = name.rpartition(".")

        def act(model: nn.Module, parent: str = parent, leaf: str = leaf) -> None:
            quantize(model.get_submodule(parent), leaf)

        stock, inputs = subject.family.build(), subject.inputs()
        if not _runs(stock, inputs, act):
            continue
        before, after = subject.family.build(), copy.deepcopy(fused.ours)
        act(before)
        plan = subject.fuse(before, inputs)
        read = {
            (site.pattern, site.path) for site in fused.plan.sites
            if name in (site.path, *site.covers) and site.pattern not in READS_NO_WEIGHT
        }  # fmt: skip
        assert not read & {(site.pattern, site.path) for site in plan.sites}
        silent = read - {(refusal.pattern, refusal.path) for refusal in plan.refusals}
        assert not silent, f"{name} quantised: no refusal of {silent}"
        act(after)
        for ours in (before, after):
            follow(subject, name, ours, stock, train)
        done += 1
        if done == subject.places:
            break
    assert done
