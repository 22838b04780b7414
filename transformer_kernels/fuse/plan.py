# SPDX-License-Identifier: MIT
"""The plan of a model: its sites and refusals, put in and taken out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from ..measure.table import ABSENT, Table
from .derive import OWN, derived, is_derived, original
from .few import FEW
from .report import render
from .site import Refusal, Site, Times

_HEADINGS = (
    ("Pattern", 14), ("sites", 5), ("kernel", 12), ("shape", 10), ("launches", 8), ("MB", 8),
    ("runs", 8), ("stock us", 8), ("ours us", 8),
    ("gain", 6), ("predicted us", 12),
)  # fmt: skip
# By the gate for calls with gradients and the one for those without.
_RUNS = {(True, True): "always", (True, False): "training", (False, True): "no grad",
         (False, False): "never"}  # fmt: skip
_REPLACED = f"{OWN}replaced"  # of a module: its attributes that were set, and what stood there
_NOTE = (
    "launches and MB are of the forward pass; microseconds are of both passes, or of the forward"
    " pass where ours runs without gradients alone"
)


class Step(NamedTuple):
    """Times of the whole model: a step of training, or a forward pass."""

    what: str
    times: Times


@dataclass(eq=False)
class Plan:
    """The sites of a model that :func:`transformer_kernels.fuse` serves, and those that it leaves.

    ``str(plan)`` is a table, :meth:`to_json` the same as data.
    """

    model: str  # its class
    inputs: str  # of the recorded run
    sites: list[Site] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)  # bytes by module, as recorded
    declined: list[Site] = field(default_factory=list)  # were timed and do not pay
    steps: list[Step] = field(default_factory=list)  # of the whole model, on a GPU

    def counts(self) -> dict[str, int]:
        """The number of sites of each pattern."""
        return dict(Counter(site.pattern for site in self.sites))

    def to_html(self) -> str:
        """The plan as a page: the forward pass before and after, and the table. Needs jinja2."""
        lines = [_NOTE, *_step_lines(self.steps), *_refused_lines(self.refusals)]
        return render(self.model, self.sites, self.moved, self.lay_out(), lines)

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as JSON: model, inputs, sites, those that do not pay, and refusals."""
        data = {
            "model": self.model,
            "inputs": self.inputs,
            "sites": [_record(site) for site in self.sites],
            "declined": [_record(site) for site in self.declined],
            "refusals": [refusal._asdict() for refusal in self.refusals],
            "steps_us": {step.what: step.times._asdict() for step in self.steps},
        }
        return json.dumps(data, indent=indent)

    def lay_out(self) -> Table:
        """The table of the sites: one line for those that do the same work."""
        kinds: dict[Any, list[Site]] = {}
        for site in self.sites:
            kinds.setdefault((site.pattern, site.key), []).append(site)
        body = [_line(sites) for sites in kinds.values()]
        return Table(f"FUSED: {self.model}", f"inputs: {self.inputs}", _HEADINGS, body)

    def __str__(self) -> str:
        steps, refused = _step_lines(self.steps), _refused_lines(self.refusals)
        return "\n".join([str(self.lay_out()), _NOTE, *steps, *refused])

    __repr__ = __str__


def _record(site: Site) -> dict[str, Any]:
    def pair(times: Times | None) -> dict[str, float] | None:
        return None if times is None else times._asdict()

    predicted = {} if site.predicted is None else site.predicted._asdict()
    return {
        "path": site.path, "pattern": site.pattern, "kernel": site.function,
        "shape": list(site.shape), "covers": list(site.covers), "launches": site.launches,
        "bytes": site.bytes, "training_us": pair(site.training),
        "inference_us": pair(site.inference),
        "host_us": None if site.host is None else [pair(times) for times in site.host],
        "runs": site.gate._asdict(),
        **{f"predicted_{name}_us": pair(times) for name, times in predicted.items()},
    }  # fmt: skip


def _line(sites: list[Site]) -> list[str]:
    site = sites[0]
    times, predicted = site.times, site.predicted_times
    return [
        site.pattern,
        str(len(sites)),
        site.function.removeprefix("functional."),
        "x".join(map(str, site.shape)) or ABSENT,
        _change(site.launches, "d", 1),
        _change(site.bytes, ".2f", 1e6),
        _RUNS[site.gate.training, site.gate.inference],
        ABSENT if times is None else f"{times.stock:.0f}",
        ABSENT if times is None else f"{times.ours:.0f}",
        ABSENT if times is None else f"{times.stock / times.ours:.2f}x",
        ABSENT if predicted is None else f"{predicted.stock:.0f} > {predicted.ours:.0f}",
    ]


def _change(pair: tuple[int, int] | None, form: str, unit: float) -> str:
    if pair is None:
        return ABSENT
    before, after = (format(n if unit == 1 else n / unit, form) for n in pair)
    return f"{before} > {after}"


def _step_lines(steps: Iterable[Step]) -> list[str]:
    """One line for each kind of step of the whole model."""
    return [
        f"{step.what}: {step.times.stock / 1e3:.1f} ms stock, {step.times.ours / 1e3:.1f} ms fused"
        for step in steps
    ]


def _refused_lines(refusals: Iterable[Refusal]) -> list[str]:
    """One line for each pattern and reason."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for refusal in refusals:
        key = (refusal.pattern, refusal.reason, refusal.help)
        grouped.setdefault(key, []).append(refusal.path or "the model")
    return [
        f"not fused: {pattern} at {paths[0]}"
        + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        + f": {reason}"
        + (f" ({advice})" if advice else "")
        for (pattern, reason, advice), paths in grouped.items()
    ]


# ---- putting in and taking out ------------------------------------------------------------------


def put_in(sites: Iterable[Site]) -> None:
    """Gives modules their derived classes. If one fails, none has one."""
    done: list[nn.Module] = []
    try:
        for site in sites:
            site.module.__dict__.update({**site.state, "_tfk_path": site.path})
            for module in (site.module, *site.partners):
                done.append(module)
                own = module.__dict__
                own.setdefault("_tfk_gates", {})[site.pattern] = site.gate
                own[FEW] = min(site.few, own.get(FEW, site.few))
                if site.mixin is not None and not issubclass(type(module), site.mixin):
                    module.__class__ = derived(type(module), site.mixin)
            _set(site.module, site.attributes)
    except BaseException:
        take_out(done)
        raise


@contextmanager
def while_in(sites: Sequence[Site]) -> Iterator[None]:
    """Has the sites in their modules inside, and nothing of them afterwards."""
    put_in(sites)
    try:
        yield
    finally:
        take_out(module for site in sites for module in (site.module, *site.partners))


def _set(module: nn.Module, attributes: Mapping[str, Any]) -> None:
    """Sets attributes, by the module's own setters where it has some, and notes what each of them
    replaced in the instance."""
    own = vars(module)
    for name, ours in attributes.items():
        before = dict(own)
        setattr(module, name, ours)
        changed = [key for key, value in own.items() if value is ours]
        replaced = {key: (ours, *([before[key]] if key in before else [])) for key in changed}
        own.setdefault(_REPLACED, {}).update(replaced)


def _unset(module: nn.Module) -> None:
    """Takes back attributes that are still those that were set."""
    own = vars(module)
    for name, (ours, *stock) in own.get(_REPLACED, {}).items():
        if own.get(name) is ours:
            del own[name]
            own.update(zip([name], stock, strict=False))


def take_out(modules: Iterable[nn.Module]) -> None:
    """Gives modules the classes that they had, and removes what fusing has added."""
    for module in modules:
        _unset(module)
        if is_derived(type(module)):
            module.__class__ = original(type(module))
        for name in [name for name in module.__dict__ if name.startswith(OWN)]:
            del module.__dict__[name]
