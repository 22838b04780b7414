# SPDX-License-Identifier: MIT
"""fuse, unfuse and plan: one recorded run, sites found and proven, classes put in together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .._errors import ArgumentTypeError, ArgumentValueError
from .._torch import is_a
from . import graphs as _graphs
from . import patterns as _patterns
from .cost import Prices, autocast, bytes_by_module, lowered
from .derive import is_derived
from .inputs import Inputs, given
from .patterns._logits import NoLogits
from .plan import Plan, put_in, take_out, while_in
from .prove import agree, forget
from .record import Trace, as_it_was, loss_or_results, record
from .site import Refusal, RefusedError, Site
from .whole import settle

_PLAN = "_tfk_plan"  # the attribute of a fused model
_COMPILED = ("torch._dynamo.eval_frame", "OptimizedModule")
_SKIPS = "skip_logits"
_DEPTH = 4.0  # the errors of many modules add up
_ELSEWHERE = "on another machine, or for other shapes, it may be faster"


class OperatorFuser:
    """Fuses models; its options are those of :func:`fuse`.

    >>> fuser = tfk.OperatorFuser(patterns=["norm", "attention"])
    >>> plan = fuser.fuse(model, {"input_ids": ids})
    """

    def __init__(
        self,
        *,
        skip_logits: bool = False,
        residual_in_fp32: bool = True,
        measure: bool = True,
        predict: bool = False,
        graphs: bool = False,
        patterns: Sequence[str] | None = None,
    ) -> None:
        known = {
            pattern.name: pattern
            for pattern in _patterns.ALL
            if skip_logits or pattern.name != _SKIPS
        }
        unknown = sorted({*(patterns or ())} - {*known})
        if unknown:
            raise ArgumentValueError(
                f"fuse: patterns has {unknown[0]!r}, expected some of {', '.join(known)}"
            )
        self.measure = measure
        self.predict = predict
        self.graphs = graphs
        self.skip_logits = skip_logits
        self.residual_in_fp32 = residual_in_fp32
        self._patterns = [
            pattern for name, pattern in known.items() if patterns is None or name in patterns
        ]

    def plan(self, model: nn.Module, inputs: Any = None) -> Plan:
        """The plan that :meth:`fuse` would carry out; the model stays as it is."""
        standing = _standing(model)
        if standing is not None:
            return standing
        plan, trace = self._planned(model, given(model, inputs))
        self._add_graphs(model, plan, trace)
        return plan

    def fuse(self, model: nn.Module, inputs: Any = None) -> Plan:
        """Fuses the model in place; returns the plan, for a fused model the one that stands."""
        standing = _standing(model)
        if standing is not None:
            return standing
        made = given(model, inputs)
        plan, trace = self._planned(model, made)
        _put_in_verified(model, made, plan, trace)
        put_in(self._add_graphs(model, plan, trace))
        model.__dict__[_PLAN] = plan
        return plan

    def _planned(self, model: nn.Module, inputs: Inputs) -> tuple[Plan, Trace]:
        device = next(iter(model.parameters()), torch.empty(0)).device
        dtype = lowered(model)
        trace = _recorded(model, inputs, device, dtype)
        trace.residual_in_fp32 = self.residual_in_fp32
        trace.skips_logits = self.skip_logits
        forget()
        text = inputs.text if dtype is None else f"{inputs.text}, under autocast to {dtype}"
        plan = Plan(type(model).__name__, text, moved=bytes_by_module(trace))
        prices = None
        if self.measure:
            prices = Prices(device, inputs, dtype, launches=not self.graphs, predict=self.predict)
        with autocast(device, None):  # proofs are exact, and times have an autocast of their own
            self._find(model, trace, plan, prices)
            if prices is not None:
                settle(model, inputs, plan, prices)
        if prices is not None:
            prices.write()
            plan.declined = [site for site in prices.sites if site not in plan.sites]
        for site in (*plan.sites, *plan.declined):
            site.trial = None  # it refers to the record
        return plan, trace

    def _find(self, model: nn.Module, trace: Trace, plan: Plan, prices: Prices | None) -> None:
        self._match(trace, plan, prices)
        for pattern in self._patterns:
            for found in list(pattern.find(model, trace, plan.sites)):
                if isinstance(found, Refusal):
                    plan.refusals.append(found)
                elif (slow := _why_not(found, prices)) is not None:
                    plan.refusals.append(Refusal(found.path, found.pattern, slow, _ELSEWHERE))
                else:
                    plan.sites.append(found)

    def _add_graphs(self, model: nn.Module, plan: Plan, trace: Trace) -> list[Site]:
        """Adds the blocks that are replayed, where that is asked for; their classes go around all
        others."""
        found = list(_graphs.find(model, trace)) if self.graphs else []
        added = [site for site in found if isinstance(site, Site)]
        plan.sites.extend(added)
        plan.refusals.extend(site for site in found if isinstance(site, Refusal))
        return added

    def _match(self, trace: Trace, plan: Plan, prices: Prices | None) -> None:
        covered: set[str] = set()
        seen: set[str] = set()
        for call in trace.calls:  # a module's call begins before those in it
            path = call.path
            if path in seen or any(path == c or path.startswith(f"{c}.") for c in covered):
                continue
            for pattern in self._patterns:
                try:
                    site = pattern.match(call, trace)
                    if site is not None and "forward" in vars(call.module):
                        raise RefusedError("its forward was replaced", "fuse before that")
                    if site is not None and (slow := _why_not(site, prices)) is not None:
                        raise RefusedError(slow, _ELSEWHERE)
                except RefusedError as refused:
                    plan.refusals.append(Refusal(path, pattern.name, str(refused), refused.help))
                    seen.add(path)
                    continue
                if site is not None:
                    plan.sites.append(site)
                    covered.update(site.covers)
                    seen.add(path)
                    break


def _recorded(
    model: nn.Module, inputs: Inputs, device: torch.device, dtype: torch.dtype | None
) -> Trace:
    """The record of the run whose calls are timed, with the result of the run as it stands."""
    trace = record(model, inputs.args, inputs.kwargs)
    if dtype is not None and not torch.is_autocast_enabled(device.type):
        result = trace.result
        with autocast(device, dtype):
            trace = record(model, inputs.args, inputs.kwargs)
        trace.result = result
    trace.time = inputs.time
    return trace


def _why_not(site: Site, prices: Prices | None) -> str | None:
    """Times a site, and opens it for the calls that pay; the reason why where none does."""
    if prices is None or site.trial is None:
        return None
    site.gate = prices.gate(site)
    if prices.may_pay(site):
        return None
    assert site.training is not None
    assert site.inference is not None
    return (
        f"our code takes {site.training.ours:.0f} us with gradients and {site.inference.ours:.0f}"
        f" without, PyTorch's {site.training.stock:.0f} and {site.inference.stock:.0f}"
    )


def _standing(model: Any) -> Plan | None:
    """The plan of a fused model; None for another one."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"fuse: model is {type(model).__name__}, expected an nn.Module")
    if isinstance(model, torch.jit.ScriptModule) or is_a(model, *_COMPILED):
        raise ArgumentTypeError(
            f"fuse: model is {type(model).__name__}, expected the module that was compiled"
        )
    plan = model.__dict__.get(_PLAN)
    if plan is None and any(is_derived(type(module)) for module in model.modules()):
        raise ArgumentValueError(
            "fuse: model has fused modules, expected none, or the model that was fused as a whole"
            " (unfuse it first)"
        )
    return plan


def _differs(model: nn.Module, inputs: Inputs, trace: Trace, sites: Sequence[Site]) -> str | None:
    """Says how the model differs from the recorded run with these sites; None where it does not."""
    with while_in(sites):
        try:
            with as_it_was(model):
                result = model(*inputs.args, **inputs.kwargs)
                agrees = agree(result, trace.result, _DEPTH, dtypes=trace.residual_in_fp32)
            return None if agrees else "gives another result"
        except Exception as error:  # whatever the code of a module raises
            return f"raises {type(error).__name__}: {error}"


def _trains_alike(model: nn.Module, inputs: Inputs, trace: Trace, sites: Sequence[Site]) -> bool:
    """Whether the model that skips logits has the recorded loss; dropout is off but for the
    root."""
    training = model.training
    with while_in(sites):
        try:
            with as_it_was(model), torch.enable_grad():
                model.training = True
                result = loss_or_results(model(*inputs.args, **inputs.kwargs))
            return all(
                isinstance(ours, NoLogits)
                or agree(ours, stock, _DEPTH, dtypes=trace.residual_in_fp32)
                for ours, stock in zip(result, loss_or_results(trace.result), strict=True)
            )
        except Exception:  # a site that raises is one that gives another result
            return False
        finally:
            model.training = training


def _refuse_skipping(plan: Plan) -> None:
    plan.sites = [site for site in plan.sites if site.pattern != _SKIPS]
    plan.refusals.append(Refusal("", _SKIPS, "without logits the model has another loss"))


def _put_in_verified(model: nn.Module, inputs: Inputs, plan: Plan, trace: Trace) -> None:
    """Puts in the sites with which the model as a whole gives what it gave; the others are
    refused."""
    while (found := _differs(model, inputs, trace, plan.sites)) is not None:
        low, high = 0, len(plan.sites)  # the first `low` sites agree, the first `high` do not
        if _differs(model, inputs, trace, []) is not None:
            raise ArgumentValueError(
                "fuse: the model gives another result at each call, expected one that repeats in"
                " evaluation mode"
            )
        while high - low > 1:
            middle = (low + high) // 2
            reason = _differs(model, inputs, trace, plan.sites[:middle])
            low, high = (middle, high) if reason is None else (low, middle)
            found = reason or found
        site = plan.sites.pop(high - 1)
        reason = f"with it the model as a whole {found}"
        plan.refusals.append(Refusal(site.path, site.pattern, reason))
    skips = any(site.pattern == _SKIPS for site in plan.sites)
    if skips and not _trains_alike(model, inputs, trace, plan.sites):
        _refuse_skipping(plan)
    put_in(plan.sites)


def fuse(
    model: nn.Module,
    inputs: Any = None,
    *,
    skip_logits: bool = False,
    residual_in_fp32: bool = True,
    measure: bool = True,
    predict: bool = False,
    graphs: bool = False,
    patterns: Sequence[str] | None = None,
) -> Plan:
    """Fuses a transformer in place: its modules run this package's kernels where these give the
    same results in less time.

    The model runs once, and is left as it is if anything fails. Its class, parameters,
    ``state_dict``, hooks and the optimizer's references stay. :func:`unfuse` takes everything out.

    >>> plan = tfk.fuse(model)
    >>> print(plan)

    Args:
        model: any ``nn.Module``, on a CPU or a GPU.
        inputs: the arguments of a call: a dict of keyword arguments, a tuple of positional ones or
            a tensor. By default they are made up from the shapes of the model's configuration; the
            plan says so. They are cut to a few rows for the recorded run.
        skip_logits: in training, compute the loss of the labels without the logits; the output has
            none.
        residual_in_fp32: under autocast PyTorch's norms give float32, to which a model that
            normalises its sums adds the next branch. ``False`` leaves them in autocast's dtype,
            which moves half of the bytes: hidden states have that dtype then, and at most about
            twice the error.
        measure: time each distinct site against PyTorch, and decline those that do not pay.
        predict: also predict the times of sites from those of their operations, which a table of
            the machine has; new operations are timed.
        graphs: replay the repeated blocks as CUDA graphs, both passes, once a few calls of the same
            kind have run; on a CPU the plan says that there are none.
        patterns: names of the patterns to look for; by default all.

    Returns:
        The plan: sites, refusals and their reasons. A fused model gives the plan that stands.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument does not fit; the message names it.
    """
    fuser = OperatorFuser(
        skip_logits=skip_logits, residual_in_fp32=residual_in_fp32, measure=measure,
        predict=predict, graphs=graphs, patterns=patterns,
    )  # fmt: skip
    return fuser.fuse(model, inputs)


def plan(
    model: nn.Module,
    inputs: Any = None,
    *,
    skip_logits: bool = False,
    residual_in_fp32: bool = True,
    measure: bool = True,
    predict: bool = False,
    graphs: bool = False,
    patterns: Sequence[str] | None = None,
) -> Plan:
    """The plan that :func:`fuse` would carry out, with the same arguments; the model stays as it
    is."""
    fuser = OperatorFuser(
        skip_logits=skip_logits, residual_in_fp32=residual_in_fp32, measure=measure,
        predict=predict, graphs=graphs, patterns=patterns,
    )  # fmt: skip
    return fuser.plan(model, inputs)


def unfuse(model: nn.Module) -> None:
    """Takes out what :func:`fuse` has put into the model, whose results are bit for bit those of
    before. A model that is not fused stays as it is.

    Raises:
        ArgumentValueError: a fused module got yet another class since; nothing was taken out.
    """
    for path, module in model.named_modules():
        kind = type(module)
        if not is_derived(kind) and any(is_derived(base) for base in kind.__mro__):
            raise ArgumentValueError(
                f"unfuse: {path or 'model'} is {kind.__name__}, expected the class that fuse gave"
                " it (take off first what was put on since)"
            )
    take_out(model.modules())
