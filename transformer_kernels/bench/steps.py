# SPDX-License-Identifier: MIT
"""Training steps of whole models, predicted on measured machines and on others.

A step is the ops that a fused model calls, with the bytes and operations that their declarations
tell for these shapes. Nothing runs, so any size can be asked. Where a card's times of the ops are
stored, each call can be corrected by how much longer than predicted its op takes there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from transformer_kernels.bench import analysis
from transformer_kernels.bench.cases import all_ops
from transformer_kernels.bench.families import FAMILIES, GRAPHS, Family, Size
from transformer_kernels.hardware import WHAT_IFS, Hardware, Plan, predict
from transformer_kernels.measure.case import Problem
from transformer_kernels.measure.schema import Result, Row, StepTime
from transformer_kernels.measure.table import ABSENT, Table

_EIGHT_BITS = "products of 8 bits"
_FORWARD, _BACKWARD, _BOTH = "forward", "backward", "both"
_STREAM = "float32"
_FULL, _HALF = 4, 2  # bytes of float32 and of bfloat16
_PARTS = ("memory", "products", "exponentials", "launches")
_MOE = ((32768, 4096, 1024, 128, 8), (32768, 128))  # the shapes of its benchmark: experts, router


@dataclass(frozen=True)
class Called:
    """An op that a step calls ``count`` times in each pass that it has.

    Args:
        like: the op whose stored times correct this call; the op itself where it is None.
    """

    op: str
    shape: tuple[int, ...]
    count: int = 1
    passes: tuple[str, ...] = (_FORWARD, _BACKWARD)
    dtype: str = "bfloat16"
    like: str | None = None


# ---- what a step calls --------------------------------------------------------------------------


def calls_of(family: Family) -> list[Called]:
    """The ops of a step under autocast, as a fused decoder calls them; its optimizer is AdamW. The
    residual stream is in float32, since embeddings are."""
    size = family.full
    rows, dim = size.batch * size.tokens, size.head_dim or size.width // size.heads
    key_heads = size.key_heads or size.heads
    grouped = (size.batch, size.tokens, size.heads, *_own(size, key_heads), dim)
    heads = size.heads * dim
    layer = [
        Called("linear", (rows, size.width, heads + 2 * key_heads * dim)),
        Called("causal_attention", grouped, like="dropout_attention" if family.dropout else None),
        Called("linear", (rows, heads, size.width)),
        *_norms_and_mlp(family, rows, grouped),
    ]
    return [
        Called("embedding", (size.batch, size.tokens, size.vocabulary, size.width), dtype=_STREAM),
        *(replace(called, count=called.count * size.layers) for called in layer),
        Called("linear_cross_entropy", (rows, size.width, size.vocabulary), passes=(_BOTH,)),
        Called("adamw", (1, parameters(family)), passes=(_FORWARD,), dtype=_STREAM),
    ]


def _own(size: Size, key_heads: int) -> tuple[int, ...]:
    return () if key_heads == size.heads else (key_heads,)


def _norms_and_mlp(family: Family, rows: int, grouped: tuple[int, ...]) -> Iterator[Called]:
    size = family.full
    wide = (rows, size.width, size.inner)
    if family.kind == "gpt2":
        yield Called("bias_dropout_add_layer_norm", (rows, size.width), 2, dtype=_STREAM)
        yield Called("mlp", wide)
        return
    yield Called("add_rms_norm", (rows, size.width), 2, dtype=_STREAM)
    yield Called("gated_mlp", wide)
    yield Called("qk_norm" if family.kind == "qwen3" else "rope", grouped)


def parameters(family: Family) -> int:
    """The numbers of a decoder's matrices; its vectors are few beside them. The embeddings of the
    race's Llama have a weight of their own, those of the others are the logits' weight."""
    size = family.full
    dim = size.head_dim or size.width // size.heads
    key_heads = size.key_heads or size.heads
    attention = 2 * size.width * dim * (size.heads + key_heads)
    mlp = (2 if family.kind == "gpt2" else 3) * size.width * size.inner
    tables = 2 if family.kind == "llama" else 1
    return size.layers * (attention + mlp) + tables * size.vocabulary * size.width


def _casts(family: Family) -> Plan:
    """Autocast makes a copy of each weight in 16 bits, and a gradient in 32 bits of one in 16."""
    return Plan(bytes=2 * (_FULL + _HALF) * parameters(family), launches=2 * 7 * family.full.layers)


@cache
def plan_of(op: str, shape: tuple[int, ...], pass_: str, dtype: str) -> Plan:
    """A call of the op asks a machine for this, by its declaration."""
    case = all_ops()[op]
    kind = getattr(torch, dtype)
    tensors = case.make(Problem(op, pass_, kind, kind, shape), torch.device("meta"))
    row = Row(
        op, pass_, dtype, None, list(shape), "predicted", "fresh", math.nan, math.nan, math.nan, 0,
        case.bytes_moved(pass_, tensors), math.nan, None, None, None, "none", True,
    )  # fmt: skip
    return analysis.plan_of(row, case)


@dataclass(frozen=True)
class Planned:
    """Calls of a step that ask a machine for the same.

    Args:
        count: of the calls.
        of: op, pass and last dimension of stored times like this call's; None where no op is
            called.
        longer: how much longer a call takes than is predicted of its plan.
    """

    plan: Plan
    count: int
    of: tuple[str, str, int] | None = None
    longer: float = 1.0

    def us(self, machine: Hardware) -> float:
        """The predicted time of all these calls."""
        return self.count * self.longer * predict(self.plan, machine).us


@dataclass(frozen=True)
class Step:
    """A model's step, and all its calls.

    Args:
        settings: of the result files that measured it: the model and the batch, in words.
    """

    title: str
    settings: tuple[str, str] | None
    calls: Sequence[Planned]

    def us(self, machine: Hardware) -> float:
        """The predicted time of all calls, one after another."""
        return sum(call.us(machine) for call in self.calls)

    def parts(self, machine: Hardware) -> dict[str, float]:
        """Microseconds by what bounds a call."""
        found = dict.fromkeys(_PARTS, 0.0)
        for call in self.calls:
            found[predict(call.plan, machine).bound] += call.us(machine)
        return found


def in_eight_bits(step: Step) -> Step:
    """The step whose products take operands and results of half the bytes."""

    def halved(call: Planned) -> Planned:
        return replace(call, plan=replace(call.plan, bytes=call.plan.bytes // 2))

    return replace(step, calls=[halved(c) if c.plan.flops else c for c in step.calls])


def _planned(calls: Sequence[Called]) -> list[Planned]:
    return [
        Planned(
            plan_of(call.op, call.shape, pass_, call.dtype),
            call.count,
            (call.like or call.op, pass_, call.shape[-1]),
        )
        for call in calls
        for pass_ in call.passes
    ]


def step_of(name: str) -> Step:
    """The step of a decoder of :data:`FAMILIES`, at the size of the published model.

    >>> step_of("gpt2").us(DATASHEETS["H100"]) < step_of("gpt2-medium").us(DATASHEETS["H100"])
    True
    """
    family = FAMILIES[name]
    settings = (f"{family.title}, {family.full}", family.full.batch_text)
    return Step(
        ", ".join(settings), settings, [*_planned(calls_of(family)), Planned(_casts(family), 1)]
    )


def moe_step() -> Step:
    """The forward and backward pass of a layer of experts."""
    experts, router = _MOE
    calls = [Called("moe_router", router), Called("moe_experts", experts)]
    tokens, width, inner, count, chosen = experts
    title = f"{count} experts of {inner}, {chosen} a token, width {width}, {tokens} tokens"
    return Step(title, None, _planned(calls))


DECODERS = ("gpt2", "gpt2-medium", "llama", "qwen3")


def all_steps() -> dict[str, Step]:
    """The steps by name."""
    return {**{name: step_of(name) for name in DECODERS}, "moe": moe_step()}


# ---- beside what was measured -------------------------------------------------------------------


class Corrections:
    """How much longer ops take on a card than is predicted, by their stored times there."""

    def __init__(self, results: Sequence[Result], machine: Hardware) -> None:
        self._ratios: dict[tuple[str, str], dict[int, list[float]]] = {}
        for one in analysis.compare(results, machine):
            if one.prediction.bound != "launches":
                of_op = self._ratios.setdefault((one.row.op, one.row.pass_), {})
                of_op.setdefault(one.row.shape[-1], []).append(1 / (1 + one.error))

    def longer(self, op: str, pass_: str, columns: int) -> float:
        """The median of measured over predicted times: of the problems with this last dimension, of
        all of the op where there are none, and 1 where the op was not measured."""
        found = self._ratios.get((op, pass_), {})
        ratios = found.get(columns) or [ratio for some in found.values() for ratio in some]
        return statistics.median(ratios) if ratios else 1.0

    def corrected(self, step: Step) -> Step:
        """The step, each of whose calls takes as much longer as its op does."""
        calls = [replace(c, longer=self.longer(*c.of)) if c.of else c for c in step.calls]
        return replace(step, calls=calls)


def measured(step: Step, results: Sequence[Result]) -> StepTime | None:
    """The fused model's time, with its blocks as graphs, where results of it are stored. Without
    graphs the host's time shows, which the model does not know."""
    for result in results:
        settings = (result.settings.get("model"), result.settings.get("batch"))
        for found in result.step_times:
            if settings == step.settings and found.model == GRAPHS:
                return found
    return None


def validation_table(
    steps: Mapping[str, Step],
    machines: Sequence[tuple[Hardware, Sequence[Result]]],
    corrections: Corrections,
) -> Table:
    """Predicted and measured steps on each machine, with the results of that machine; predicted by
    the model alone, and corrected by the times of the ops."""
    body, all_errors = [], []
    for machine, results in machines:
        for step in steps.values():
            found = measured(step, results)
            if found is not None:
                times = [one.us(machine) for one in (step, corrections.corrected(step))]
                errors = [us / found.median_us - 1 for us in times]
                line = [step.title, machine.name, f"{found.median_us / 1e3:.1f}"]
                for us, error in zip(times, errors, strict=True):
                    line += [f"{us / 1e3:.1f}", f"{error:+.0%}"]
                body.append(line)
                all_errors.append(errors)
    if all_errors:
        line = [f"median of {len(all_errors)}", ABSENT, ABSENT]
        for of_way in zip(*all_errors, strict=True):
            line += [ABSENT, f"{statistics.median(map(abs, of_way)):.0%}"]
        body.append(line)
    headings = [("Step", 60), ("card", 20), ("measured ms", 11), ("predicted", 9), ("error", 6),
                ("corrected", 9), ("error", 6)]  # fmt: skip
    subtitle = "fused, blocks as graphs; corrected by how much longer its ops take alone"
    return Table("STEPS OF TRAINING", subtitle, headings, body)


def ratio_table(
    steps: Mapping[str, Step], machines: Sequence[tuple[Hardware, Sequence[Result]]]
) -> Table:
    """How much longer a step takes on the second machine than on the first, which is what a
    prediction of another card rests on."""
    (first, on_first), (second, on_second) = machines
    body = []
    for step in steps.values():
        times = measured(step, on_first), measured(step, on_second)
        if times[0] is not None and times[1] is not None:
            was = times[1].median_us / times[0].median_us
            is_ = step.us(second) / step.us(first)
            body.append([step.title, f"{was:.2f}x", f"{is_:.2f}x", f"{is_ / was - 1:+.0%}"])
    headings = [("Step", 60), ("measured", 8), ("predicted", 9), ("error", 6)]
    return Table(f"STEPS OF {second.name} OVER {first.name}", "times", headings, body)


# ---- what if ------------------------------------------------------------------------------------


def _more_units(machine: Hardware) -> Hardware:
    return replace(WHAT_IFS["products twice as fast"](
        WHAT_IFS["exponentials twice as fast"](machine)), units=2 * machine.units)  # fmt: skip


CHANGES: Mapping[str, Callable[[Hardware], Hardware]] = {
    **WHAT_IFS,
    "multiprocessors twice as many": _more_units,
}


def speed_ups(step: Step, machine: Hardware) -> dict[str, float]:
    """How much faster a step would be with one thing changed, and on other cards by their data
    sheets."""
    today = step.us(machine)
    times = {name: step.us(change(machine)) for name, change in CHANGES.items()}
    times[_EIGHT_BITS] = in_eight_bits(step).us(WHAT_IFS["products twice as fast"](machine))
    for name, card in analysis.other_cards(machine).items():
        times[name] = step.us(card)
    return {name: today / us for name, us in times.items()}


def what_if_table(steps: Mapping[str, Step], machine: Hardware) -> Table:
    """How much faster a step would be on other machines."""
    today = {name: step.us(machine) for name, step in steps.items()}
    body = [["ms today", *(f"{us / 1e3:.1f}" for us in today.values())]]
    found = [speed_ups(step, machine) for step in steps.values()]
    body += [[name, *(f"{one[name]:.2f}x" for one in found)] for name in found[0]]
    body += [
        [f"bound by {part}", *(f"{step.parts(machine)[part] / today[key]:.0%}"
                               for key, step in steps.items())]
        for part in _PARTS
    ]  # fmt: skip
    headings = [("Machine", 30), *((name, 11) for name in steps)]
    return Table(f"WHAT IF ({machine.name})", "predicted speed-up of a step", headings, body)
