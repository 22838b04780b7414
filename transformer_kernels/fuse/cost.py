# SPDX-License-Identifier: MIT
"""The cost of a site: bytes and launches from the record and the declarations, and measured times,
which decide."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..measure.timing import interleave, make_timer
from ..ops._declare import Op
from .derive import Gate
from .inputs import Inputs
from .predict import Predictor
from .prove import fused_twin, twin
from .record import MOVES, Node, Trace, Value, tensors_in
from .site import Calls, Predicted, Site, Times, Trial
from .table import Table

_LEAST_GAIN = 0.02  # of PyTorch's time: less may be noise
_OF_FEW = 0.6  # of PyTorch's time, for few rows: in a model less is gained than in a loop
_FEW_ROWS = (1, 8, 32, 128)
_SECONDS = 0.03  # of timing a pair of calls on a CPU
_SECONDS_OF_OPERATION = 0.004
_ROWS_OF_HOST = 8  # of a call whose time is the host's
_LEAST_ROUNDS, _MOST_SECONDS = 5, 0.4  # fewer rounds of what takes long
_ROUNDS_ON_CUDA = 9
_HOST_ROUNDS, _HOST_CALLS = 4, 8
_HOST_ROWS = 64  # of calls whose launching is timed, so that the device keeps up
_NO_HOST = Times(0.0, 0.0)  # a CPU's times have it in them
_SHARES = (0.5, 0.0, 0.25, 0.75, 1.0)  # weights of the host's time; by default the first
_MOST_PRODUCTS = 2  # times the recorded rows, for what takes long on a CPU


# ---- bytes --------------------------------------------------------------------------------------


def meta(value: Value | Tensor) -> Tensor:
    """A tensor without memory, for the declarations' cost."""
    return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")


def bytes_of(op: Op, **tensors: Any) -> int:
    """The bytes that a forward pass of the op moves."""
    return op.work("forward", tensors).bytes


def _size(value: Value) -> int:
    return math.prod(value.shape) * value.dtype.itemsize


def meta_bytes(*values: Value) -> int:
    """The bytes of values that are read or written once."""
    return sum(map(_size, values))


def recorded_bytes(trace: Trace, nodes: list[Node]) -> int:
    """The bytes of the operations as recorded: each reads its inputs and writes its results."""
    return meta_bytes(*(trace.values[v] for node in nodes for v in (*node.ins, *node.outs)))


def bytes_by_module(trace: Trace) -> dict[str, int]:
    """The bytes that the own code of each module moves, in the order of their calls."""
    moved = {call.path: 0 for call in trace.calls}
    for node in trace.nodes:
        if node.name not in MOVES:
            moved[node.path] += recorded_bytes(trace, [node])
    return moved


# ---- times --------------------------------------------------------------------------------------


def trial_of_module(
    module: nn.Module, mixin: type, state: dict[str, Any], x: Value
) -> Callable[[int], Calls]:
    """Makes the trial of a module that takes one tensor: both codes on random rows, in training
    mode."""

    def trial(rows: int) -> Calls:
        stock = twin(module, Tensor.detach)
        for part in stock.modules():
            part.training = True
        ours = fused_twin(stock, mixin, state)
        made = torch.randn(1, rows, x.shape[-1], dtype=x.dtype, device=x.device)
        return Calls(stock.forward, ours.forward, (made,), tuple(stock.parameters()))

    return trial


def rows_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def lowered(model: nn.Module) -> torch.dtype | None:
    """The dtype of autocast under which the model is timed; None where that is off.

    It is the one that is on. Where none is, that of a float32 model on a GPU is bfloat16, because
    such models are trained under autocast as a rule.
    """
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    kind = "cpu" if parameter is None else parameter.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    is_wide = parameter is not None and parameter.dtype is torch.float32
    return torch.bfloat16 if kind == "cuda" and is_wide else None


def autocast(device: torch.device, dtype: torch.dtype | None) -> Any:
    """Autocast to this dtype; without one it is off."""
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


class _Passes:
    """Makes the calls that are timed, each under an autocast of its own, which casts the parameters
    as a step of training does."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self._device, self._dtype = device, dtype

    def forward(self, function: Callable[..., Any], calls: Calls) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad(), autocast(self._device, self._dtype):
                return function(*calls.tensors)

        return run

    def both(self, function: Callable[..., Any], calls: Calls) -> Callable[[], Any]:
        tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in calls.tensors]
        leaves = [x for x in (*tensors, *calls.parameters) if x.requires_grad]

        def run() -> Any:
            with torch.enable_grad(), autocast(self._device, self._dtype):
                results = list(tensors_in(function(*[x.view_as(x) for x in tensors])))  # no leaves
            ones = [torch.ones_like(y) for y in results]
            return torch.autograd.grad(results, leaves, ones, allow_unused=True)

        return run


Make = Callable[[Callable[..., Any], Calls], Callable[[], Any]]


def _timed(calls: Calls, make: Make) -> Times:
    device = calls.tensors[0].device
    both = (make(calls.stock, calls), make(calls.ours, calls))
    stock, ours = _least(both, device)
    if ours >= stock:  # a second look, in case another program took the time
        again = _least(both, device)
        stock, ours = min(stock, again[0]), min(ours, again[1])
    return Times(round(stock, 2), round(ours, 2))


def _least(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """The least microseconds of each call, in turn: other programs only ever add to them. On a GPU
    they are the device's own."""
    return _least_of_device(calls, device) if device.type == "cuda" else _least_of_wall(calls)


def _least_of_wall(calls: Sequence[Callable[[], Any]], seconds: float = _SECONDS) -> list[float]:
    least = [math.inf] * len(calls)
    for call in calls:
        call()
    begin, rounds = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds or rounds < _LEAST_ROUNDS:
        if rounds > 1 and passed > _MOST_SECONDS:
            break
        rounds += 1
        for i, call in enumerate(calls):
            before = time.perf_counter()
            call()
            least[i] = min(least[i], 1e6 * (time.perf_counter() - before))
    return least


def _least_of_device(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Times replays, in which the host takes no part, and calls that cannot be captured as they
    are."""
    for kind in ("graph", "events"):
        timer = make_timer(device, kind)
        # A call that waits for the device is not captured. The nodes of autograd that add gradients
        # belong to the stream of the call before the capture, which PyTorch warns of.
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
            watches = {str(i): timer.stopwatch([call]) for i, call in enumerate(calls)}
            found = interleave(watches, timer, 0.0, _ROUNDS_ON_CUDA)
            return [found[name].p10 for name in watches]
    raise RuntimeError("fuse: a site could not be timed")


def _least_of_operation(call: Callable[[], Any], device: torch.device) -> float:
    """The least microseconds of one operation, of which a model has many."""
    if device.type == "cuda":
        return _least_of_device([call], device)[0]
    return _least_of_wall([call], _SECONDS_OF_OPERATION)[0]


def _host_times(calls: Calls, make: Make) -> Times:
    """The microseconds that the host takes to launch either code."""
    found = []
    for call in (make(calls.stock, calls), make(calls.ours, calls)):
        least = math.inf
        for _ in range(_HOST_ROUNDS):
            call()
            torch.cuda.synchronize(calls.tensors[0].device)
            begin = time.perf_counter()
            for _ in range(_HOST_CALLS):
                call()
            least = min(least, 1e6 * (time.perf_counter() - begin) / _HOST_CALLS)
        found.append(round(least, 2))
    return Times(*found)


def _pays(times: Times, host: Times = _NO_HOST, share: float = 0.0) -> bool:
    """Whether a call takes less time. The host's counts by ``share``, the device's by the rest."""
    stock, ours = (share * h + (1 - share) * t for h, t in zip(host, times, strict=True))
    return ours <= (1 - _LEAST_GAIN) * stock


def _shares(device: torch.device, launches: bool) -> tuple[float, ...]:
    """The weights of the host's time with which sites may be chosen: a step on a GPU waits for the
    host or for the device."""
    return _SHARES if launches and device.type == "cuda" else (0.0,)


class Prices:
    """Measures sites on one device, each distinct one once, under autocast to ``dtype`` where that
    is given. Without ``launches`` it does not count what launching kernels costs the host."""

    def __init__(
        self, device: torch.device, inputs: Inputs, dtype: torch.dtype | None, launches: bool,
        predict: bool = False,
    ) -> None:  # fmt: skip
        self.device = device
        self.table = Table(device)
        self.shares = _shares(device, launches)
        self._factor = inputs.factor
        least = partial(_least_of_operation, device=device)
        self._predictor = Predictor(self.table, device, least) if predict else None
        self.sites: list[Site] = []  # those that were timed
        self._passes = _Passes(device, dtype)
        self.autocast = partial(autocast, device, dtype)
        self._devices = [device] if device.type == "cuda" else []
        lengths = "" if inputs.time is None else f" in sequences of {inputs.time[1]}"
        self._where = lengths + ("" if dtype is None else f" under autocast to {dtype}")

    def gate(self, site: Site) -> Gate:
        """Times the site, unless the machine's table has its times, and says which calls run our
        code by default."""
        assert site.trial is not None
        self.sites.append(site)
        kind = type(site.module)
        slow = site.has_products and not self._devices
        rows = site.rows or rows_of(site.shape)
        rows *= min(self._factor, _MOST_PRODUCTS) if slow else self._factor
        name = f"{site.pattern} {kind.__module__}.{kind.__qualname__} {site.key}"
        what = f"{name} {rows} rows{self._where}"
        found = self.table.get(what)
        if found is None:
            with torch.random.fork_rng(self._devices):
                found = self._measured(site.trial, rows)
            self.table.keep(what, found)
        site.training, site.inference = Times(*found["training"]), Times(*found["inference"])
        if self._predictor is not None:
            with torch.random.fork_rng(self._devices):
                site.predicted = self._predicted(name, site.trial, rows, self._predictor)
        site.host = Times(*found["host"][0]), Times(*found["host"][1])
        site.gate = site.gate._replace(rows=found["rows"])
        return self.gate_at(site, self.shares[0])

    def gate_at(self, site: Site, share: float) -> Gate:
        """Which calls of a timed site run our code, where the host's time counts by ``share``."""
        assert site.training is not None
        assert site.inference is not None
        assert site.host is not None
        return site.gate._replace(
            training=_pays(site.training, site.host[0], share),
            inference=_pays(site.inference, site.host[1], share),
        )

    def may_pay(self, site: Site) -> bool:
        """Whether our code is faster at some weight of the host's time."""
        gates = [self.gate_at(site, share) for share in self.shares]
        return any(gate.training or gate.inference for gate in gates)

    def _measured(self, trial: Trial, rows: int) -> dict[str, Any]:
        calls, passes = trial(rows), self._passes
        training, inference = _timed(calls, passes.both), _timed(calls, passes.forward)
        host = [_NO_HOST, _NO_HOST]
        if self._devices:
            few = trial(min(rows, _HOST_ROWS))
            host = [_host_times(few, passes.both), _host_times(few, passes.forward)]
        pays = any(
            _pays(*pair, share)
            for pair in ((training, host[0]), (inference, host[1]))
            for share in self.shares
        )
        fewest = self._fewest_rows(trial, rows, host[1]) if pays else rows
        return {"training": training, "inference": inference, "host": host, "rows": fewest}

    def _predicted(self, name: str, trial: Trial, rows: int, predictor: Predictor) -> Predicted:
        """Predicted times of both passes, and of the forward pass."""
        calls, few = trial(rows), trial(min(rows, _ROWS_OF_HOST))
        site = f"{name}{self._where}"
        return Predicted(
            predictor.times(f"{site}, both passes", self._passes.both, calls, few),
            predictor.times(f"{site}, forward", self._passes.forward, calls, few),
        )

    def _fewest_rows(self, trial: Trial, rows: int, host: Times) -> int:
        """The least number of rows from which on a call without gradients is worth it."""
        for few in _FEW_ROWS:
            if few >= rows:
                break
            stock, ours = map(max, _timed(trial(few), self._passes.forward), host)
            if ours <= _OF_FEW * stock:
                return few
        return rows

    def write(self) -> None:
        """Writes new times to the file."""
        self.table.write()
