# SPDX-License-Identifier: MIT
"""The choice of sites by steps of the whole model, on a GPU.

A step lasts as long as the slower of the host and the device needs. Which of the two that is, no
site can tell: one that saves the device's time by launches of more Python makes a step of a model
that waits for the host longer. So the sites that pay are found for several weights of the host's
time against the device's, and each of these choices runs steps of the model.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .cost import Prices
from .inputs import Inputs
from .plan import Plan, Step, while_in
from .record import as_it_was, loss_or_results, tensors_in
from .site import Refusal, Site, Times

_ROUNDS, _CALLS = 2, 2  # of the steps that are timed; one more before them is not
_FINALISTS = 2  # choices that run a second round
_LEAST_GAIN = 0.01  # of PyTorch's time: less may be noise
_WITH_GRAPHS = "with graphs=True the host takes no part"

Choice = frozenset[Site]  # the sites that are open


class _Mode(NamedTuple):
    """A kind of step, and the name of the gate's field for it."""

    gate: str
    text: str
    around: Callable[[nn.Module], AbstractContextManager[None]]
    trains: bool


def settle(model: nn.Module, inputs: Inputs, plan: Plan, prices: Prices) -> None:
    """Opens the sites with which steps of the model take the least time, and leaves out the others.

    The model is as it was afterwards. Where its steps cannot be timed, the host's time counts half.
    """
    timed = [site for site in plan.sites if site.training is not None]
    if len(prices.shares) > 1 and timed and not _is_one_of_many():
        for mode in _MODES:
            choices = {_open(timed, mode, prices, share): None for share in prices.shares}
            found = _fastest(model, inputs, plan, prices, mode, [frozenset(), *choices])
            if found is not None:
                chosen, step = found
                plan.steps.append(step)
                for site in timed:
                    site.gate = site.gate._replace(**{mode.gate: site in chosen})
    kept = _with_needs(plan, [s for s in plan.sites if s.gate.training or s.gate.inference])
    plan.refusals.extend(
        Refusal(site.path, site.pattern, _reason(site, bool(plan.steps)), _WITH_GRAPHS)
        for site in plan.sites
        if site not in kept
    )
    plan.sites = kept


def _reason(site: Site, has_steps: bool) -> str:
    assert site.host is not None
    launching = site.host[0]
    what = "steps of the model are no faster with it" if has_steps else "it costs the host too much"
    return (
        f"{what} (launching it takes {launching.ours:.0f} us of the host with gradients, PyTorch's"
        f" code {launching.stock:.0f})"
    )


def _is_one_of_many() -> bool:
    """Whether other processes run the model as well: all of them would have to choose alike."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _open(timed: Sequence[Site], mode: _Mode, prices: Prices, share: float) -> Choice:
    return frozenset(s for s in timed if getattr(prices.gate_at(s, share), mode.gate))


def _with_needs(plan: Plan, sites: Sequence[Site]) -> list[Site]:
    """These sites and those that they build on, in the order of the plan."""
    by_name = {(site.pattern, site.path): site for site in plan.sites}
    kept, left = set(sites), list(sites)
    while left:
        for name in left.pop().needs:
            site = by_name.get(name)
            if site is not None and site not in kept:
                kept.add(site)
                left.append(site)
    return [site for site in plan.sites if site in kept]


# ---- steps --------------------------------------------------------------------------------------


def _fastest(
    model: nn.Module, inputs: Inputs, plan: Plan, prices: Prices, mode: _Mode,
    choices: list[Choice],
) -> tuple[Choice, Step] | None:  # fmt: skip
    """The choice with the fastest steps; the first one is PyTorch's own code. None where that
    cannot be timed."""
    if mode.trains and not any(p.requires_grad for p in model.parameters()):
        return None
    choices = list(dict.fromkeys(choices))
    what = f"{mode.gate} steps of {plan.model}, {inputs.text}, {_digest(plan, choices)}"
    found = prices.table.get(what)
    if found is None:
        found = _race(model, inputs, plan, prices, mode, choices)
        if all(map(math.isfinite, found)):  # a step that fails may not fail another time
            prices.table.keep(what, found)
    if not math.isfinite(found[0]):
        return None
    ours = min(found[1:], default=math.inf)
    pays = ours <= (1 - _LEAST_GAIN) * found[0]
    chosen = choices[found.index(ours)] if pays else choices[0]
    return chosen, Step(mode.text, Times(round(found[0], 1), round(ours if pays else found[0], 1)))


def _digest(plan: Plan, choices: Sequence[Choice]) -> str:
    """A short name of the choices, the same in every process."""
    text = repr([
        (site.pattern, site.path, site.key, [site in chosen for chosen in choices])
        for site in plan.sites
    ])  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _race(
    model: nn.Module, inputs: Inputs, plan: Plan, prices: Prices, mode: _Mode,
    choices: Sequence[Choice],
) -> list[float]:  # fmt: skip
    """Microseconds of a step with each choice. It is infinite where a step fails."""
    least = [math.inf] * len(choices)
    stock, *ours = range(len(choices))
    run = _step(model, inputs, prices, mode)
    try:
        with mode.around(model):
            for _ in range(_ROUNDS):
                for i in (stock, *ours):
                    least[i] = min(least[i], _timed(run, plan, choices[i], prices.device))
                    if not math.isfinite(least[stock]):
                        return least
                ours = sorted(ours, key=least.__getitem__)[:_FINALISTS]
        return least
    finally:
        torch.cuda.empty_cache()


def _timed(run: Callable[[], Any], plan: Plan, chosen: Choice, device: torch.device) -> float:
    sites = [site for site in plan.sites if site.training is None or site in chosen]
    gates = {site: site.gate for site in plan.sites}
    put = _with_needs(plan, sites)
    for site in put:
        if site.training is not None:
            is_open = site in chosen
            site.gate = site.gate._replace(training=is_open, inference=is_open)
    try:
        with while_in(put):
            run()
            _wait(device)
            begin = time.perf_counter()
            for _ in range(_CALLS):
                run()
            _wait(device)
            seconds = time.perf_counter() - begin
        return 1e6 * seconds / _CALLS
    except Exception:  # too little memory, or whatever the code of a module raises
        return math.inf
    finally:
        for site, gate in gates.items():
            site.gate = gate


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step(
    model: nn.Module, inputs: Inputs, prices: Prices, mode: _Mode
) -> Callable[[], Any]:  # fmt: skip
    """A step on the caller's inputs, or on made-up ones of a usual size."""
    whole = functools.cache(inputs.whole)
    leaves = [p for p in model.parameters() if p.requires_grad]

    def run() -> Any:
        args, kwargs = whole()
        with torch.set_grad_enabled(mode.trains), prices.autocast():
            result = model(*args, **kwargs)
        if mode.trains:
            ends = [x for x in tensors_in(loss_or_results(result)) if x.requires_grad]
            ones = [torch.ones_like(x) for x in ends]
            torch.autograd.grad(ends, leaves, ones, allow_unused=True)

    return run


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Trains inside; training flags, buffers and random numbers are as before afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    buffers: list[tuple[Tensor, Tensor]] = [(x, x.clone()) for x in model.buffers()]
    devices = {p.device.index for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices):
        try:
            model.train()
            yield
        finally:
            for module, training in flags:
                module.training = training
            with torch.no_grad():
                for x, before in buffers:
                    x.copy_(before)


_MODES = (
    _Mode("training", "a step of training", _training, trains=True),
    _Mode("inference", "a forward pass", as_it_was, trains=False),
)
