# SPDX-License-Identifier: MIT
"""The result file: JSON with a row a line, schema version 1, checked field by field when it is
read."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

SCHEMA_VERSION = 1

_SIXTEEN_BITS = {"float16": "bfloat16", "bfloat16": "float16"}

T = TypeVar("T")


class SchemaError(ValueError):
    """A result file that does not follow the schema."""


@dataclass(frozen=True)
class Machine:
    device: str  # "cpu" or "cuda"
    device_name: str
    cpu_name: str
    cores: int
    memory_gib: float
    system: str
    driver: str | None = None
    device_memory_gib: float | None = None


@dataclass(frozen=True)
class Ceilings:
    """The machine's limits, measured at the start of the run."""

    copy_gbps: float
    copy_bytes: int
    matmul_tflops: float
    matmul_size: int
    matmul_dtype: str
    products: dict[str, float] = field(default_factory=dict)  # TFLOP/s of other dtypes, same size

    @property
    def all_products(self) -> dict[str, float]:
        """TFLOP/s of the matrix product, by dtype."""
        return {self.matmul_dtype: self.matmul_tflops, **self.products}

    def product_tflops(self, dtype: str) -> float | None:
        """The rate of the matrix product in this dtype; where it was not measured, in the other
        16-bit dtype."""
        measured = self.all_products
        return measured.get(dtype, measured.get(_SIXTEEN_BITS.get(dtype, dtype)))


@dataclass(frozen=True)
class Row:
    """One provider on one problem. The rows of provider "copy" move as many bytes as the op
    does."""

    op: str
    pass_: str  # "forward", "backward" or "both"
    dtype: str
    weight_dtype: str | None
    shape: list[int]
    provider: str
    outputs: str  # "fresh" (allocated by every call) or "reused"
    median_us: float
    p10_us: float
    p90_us: float
    samples: int
    bytes: int
    gbps: float
    pct_copy: float | None
    error: float | None  # relative, against the float64 reference
    kernel: str | None
    timer: str
    cold: bool  # the tensors of all timed calls together exceed the cache
    tflops: float | None = None  # only where arithmetic is the bound
    peak_bytes: int | None = None  # memory of a call beyond its arguments, on a GPU

    @property
    def problem(self) -> tuple[str, str, str, str | None, tuple[int, ...]]:
        return (self.op, self.pass_, self.dtype, self.weight_dtype, tuple(self.shape))


@dataclass(frozen=True)
class Skip:
    """A provider that could not be measured, and why."""

    problem: str
    provider: str
    reason: str


@dataclass(frozen=True)
class HostRow:
    """Host time of one eager call on a tiny tensor."""

    call: str
    provider: str
    grad: bool
    median_us: float
    p10_us: float
    p90_us: float


@dataclass(frozen=True)
class PredictedRow:
    """A site of a fused model: its times as measured, and as predicted from those of
    operations."""

    model: str
    pattern: str
    pass_: str  # "both" or "forward"
    stock_us: float
    ours_us: float
    predicted_stock_us: float
    predicted_ours_us: float


@dataclass(frozen=True)
class AreaRow:
    """One parameter set of the FPGA array, placed and routed on one part."""

    set: str  # "r2c4d64n256"
    part: str  # "ecp5-25f"
    title: str  # the part's name in a table
    logic: int  # logic cells, of the kind that the part has
    logic_available: int
    registers: int
    dsp: int  # hardware multipliers
    dsp_available: int
    ram: int  # block memories
    ram_available: int
    mhz: float  # by static timing analysis
    seed: int  # seed of the placement


@dataclass(frozen=True)
class ArrayRow:
    """One op on one FPGA array: its cycles, and the error of int8 relative to the norm."""

    op: str
    shape: str
    array: str
    commands: int
    cycles: int
    utilization: float | None  # None for an op that multiplies nothing
    relative_error: float
    cpu_us: float  # measured


@dataclass(frozen=True)
class ArrayModel:
    """A model that runs partly on an FPGA array, over a number of tokens."""

    model: str
    array: str
    in_int8: str  # which of its layers run in int8
    tokens: int
    cycles_per_token: float
    products_per_token: float  # multiplications that contribute to a result
    utilization: float
    accuracy: dict[str, float]  # against float32


@dataclass(frozen=True)
class TrainingRun:
    name: str
    losses: list[float]
    tokens_per_second: float

    @property
    def final_loss(self) -> float:
        """The mean over the last quarter of the steps."""
        last = self.losses[-max(1, len(self.losses) // 4) :]
        return sum(last) / len(last)


@dataclass(frozen=True)
class Training:
    """One model trained several times from one seed: first with stock PyTorch, then with our
    kernels."""

    model: str
    runs: list[TrainingRun]
    sample: str = ""  # text that the model wrote

    @property
    def stock(self) -> TrainingRun:
        return self.runs[0]

    def differences(self, run: TrainingRun) -> list[float]:
        return [a - b for a, b in zip(run.losses, self.stock.losses, strict=True)]


@dataclass(frozen=True)
class LevelPass:
    """The time of one call of a level's block."""

    pass_: str  # "forward" (without gradients), "backward", or "step" (training, AdamW included)
    median_us: float
    p10_us: float
    p90_us: float
    samples: int


@dataclass(frozen=True)
class LevelCount:
    """The kernels and the memory of one call of a level's block; None where the level hides
    them."""

    pass_: str  # "forward" or "both"
    kernels: list[str] | None  # names in order: kernels on a GPU, operators on a CPU
    bytes: int | None  # read and written by operators
    peak_bytes: int

    @property
    def launches(self) -> int | None:
        return None if self.kernels is None else len(self.kernels)


@dataclass(frozen=True)
class LevelRow:
    """A transformer block as one of the levels runs it."""

    level: str
    dtype: str
    shape: list[int]  # batch, time, channels
    heads: int
    causal: bool
    error: float  # largest relative error of the result and all gradients, against float64
    passes: list[LevelPass] = field(default_factory=list)
    counts: list[LevelCount] = field(default_factory=list)
    note: str | None = None  # what the row leaves out, and why

    def time_of(self, pass_: str) -> LevelPass | None:
        return next((timed for timed in self.passes if timed.pass_ == pass_), None)

    def count_of(self, pass_: str) -> LevelCount | None:
        return next((counted for counted in self.counts if counted.pass_ == pass_), None)


@dataclass(frozen=True)
class ProfilerRow:
    """The overhead of a profiler on a step of a transformer block small enough for the host to be
    the bound."""

    profiler: str
    launches: int  # of one step: kernels on a GPU, operators on a CPU
    plain_us: float  # time of one step, 10th percentile; on a CPU, processor time
    profiled_us: float
    window_us: float  # to begin and end a window and make the report

    @property
    def launch_us(self) -> float:
        """The time that the profiler adds to each launch."""
        return (self.profiled_us - self.plain_us) / self.launches


@dataclass(frozen=True)
class AgreementRow:
    """The forward pass of one of our ops, timed by `bench` and by `profile.benchmark_kernel`."""

    op: str
    dtype: str
    shape: list[int]
    bench_us: float  # the least 10th percentile of alternating runs: other load only adds time
    profile_us: float

    @property
    def ratio(self) -> float:
        return self.profile_us / self.bench_us


@dataclass(frozen=True)
class ModelRun:
    """A model of :mod:`transformer_kernels.models`, trained with one kind of kernels."""

    model: str  # "LanguageModel, 4 layers, width 256"
    data: str
    kernels: str  # "torch" or "ours"
    parameters: int
    steps: int
    seconds: float  # all steps together
    step_ms: float  # median
    step_p10_ms: float
    step_p90_ms: float
    loss: float  # of the last step
    accuracy: float  # on held-out data
    goal: float | None  # the accuracy to reach


@dataclass(frozen=True)
class StepPart:
    """One part of a model's training step."""

    model: str
    part: str
    calls: int  # kernels on a GPU, operators on a CPU
    us: float
    floor_us: float | None  # lower bound from products and copies; None where nothing is computed


@dataclass(frozen=True)
class StepTime:
    """The time of a model's whole training step, measured in turn with the run's other models."""

    model: str
    median_us: float
    p10_us: float
    p90_us: float
    samples: int
    # Beyond parameters, optimizer state and the batch; None where it was not measured.
    peak_bytes: int | None


@dataclass(frozen=True)
class DecodeRow:
    """One way to decode a sequence with a model of random weights. Ratios are medians of those
    within a round, in which all ways take turns."""

    model: str  # "110M"
    weights: str  # "bf16", "q8" or "q4"
    prompt: int  # tokens of the prompt that is timed; 0 where single tokens are
    provider: str  # "llama.cpp", "ours", or "ours, 8-bit activations"
    tokens_per_second: float  # median
    of_floor: float | None  # times as fast as one read of the weights, for single tokens
    of_llama: float | None  # times as fast as llama.cpp, where it ran
    bytes: int  # of the packed weights
    floor_gbps: float  # of a read of them, on the same threads
    barrier_ns: float  # in which the threads meet


@dataclass(frozen=True)
class ParallelRow:
    """One way to do some work on several devices, or on one of them."""

    part: str  # "tp", "ring", "norm", "ddp" or "experts"
    problem: str
    provider: str
    ranks: int
    dtype: str
    median_ms: float  # of the slowest rank
    p10_ms: float
    p90_ms: float
    samples: int
    of_one: float | None  # times as fast as one device, by work done
    of_torch: float | None  # times as fast as PyTorch's own way on as many devices
    apart: float | None  # the largest difference from one device's result, over its largest number
    # The share of the time of NCCL's kernels in which others computed, in a trace.
    hidden: float | None = None


@dataclass(frozen=True)
class GenerateRow:
    """One way to continue prompts with a model of random weights, greedily."""

    model: str  # "Llama 1B"
    batch: int
    prompt: int  # tokens of each prompt
    new: int  # tokens that follow each
    provider: str  # "ours, graphs"
    tokens_per_second: float  # median over rounds, of all sequences behind the first token
    whole_per_second: float  # likewise, with the prompt's time
    bytes: int  # of the weights and the mean cache, which a step reads
    floor_gbps: float  # of a copy
    of_floor: float  # share of the steps that so many bytes allow at the copy's rate
    equal: float  # share of tokens that are those of our steps without graphs


@dataclass(frozen=True)
class Result:
    schema_version: int
    date: str
    machine: Machine
    versions: dict[str, str]
    settings: dict[str, str]
    ceilings: Ceilings | None = None
    rows: list[Row] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    host: list[HostRow] = field(default_factory=list)
    training: Training | None = None
    area: list[AreaRow] = field(default_factory=list)
    array: list[ArrayRow] = field(default_factory=list)
    array_models: list[ArrayModel] = field(default_factory=list)
    levels: list[LevelRow] = field(default_factory=list)
    profilers: list[ProfilerRow] = field(default_factory=list)
    agreement: list[AgreementRow] = field(default_factory=list)
    model_runs: list[ModelRun] = field(default_factory=list)
    step_parts: list[StepPart] = field(default_factory=list)
    step_times: list[StepTime] = field(default_factory=list)
    predictions: list[PredictedRow] = field(default_factory=list)
    decoding: list[DecodeRow] = field(default_factory=list)
    parallel: list[ParallelRow] = field(default_factory=list)
    generating: list[GenerateRow] = field(default_factory=list)

    @property
    def busy(self) -> str | None:
        """Why the machine was busy, which makes ratios of this run's times noise."""
        return self.settings.get("busy")


def to_json(result: Result) -> str:
    return to_text(_encode(result))


def to_text(data: Mapping[str, Any]) -> str:
    """The text of a result file: a line for each field, and for each row of a list of rows."""
    fields = (f" {_line(name)}: {_rows(value)}" for name, value in data.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _rows(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _line(value)
    return "[\n" + ",\n".join(f"  {_line(row)}" for row in value) + "\n ]"


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def from_json(text: str) -> Result:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise SchemaError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise SchemaError("expected an object at the top")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SchemaError(f"schema_version is {version!r}, expected {SCHEMA_VERSION}")
    return _decode(Result, data, "result")


def save(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(result), encoding="utf-8")


def load(path: Path) -> Result:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> None:
    raise SchemaError(f"{name} is no figure")


def _key(name: str) -> str:
    """`pass_` is written as `pass`, which is a keyword in Python."""
    return name.rstrip("_")


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {_key(f.name): _encode(getattr(value, f.name)) for f in fields}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value


def _decode(expected: type[T], value: Any, where: str) -> T:
    decoded: Any
    if dataclasses.is_dataclass(expected):
        decoded = _decode_dataclass(expected, value, where)
    else:
        decoded = _decode_plain(expected, value, where)
    return typing.cast(T, decoded)


def _decode_dataclass(expected: type, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(expected)
    fields = {_key(f.name): f for f in dataclasses.fields(expected)}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise SchemaError(f"{where}: unknown field {unknown[0]!r}")
    arguments = {}
    for key, f in fields.items():
        if key in value:
            arguments[f.name] = _decode(hints[f.name], value[key], f"{where}.{key}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise SchemaError(f"{where}: field {key!r} is missing")
    return expected(**arguments)


def _decode_plain(expected: Any, value: Any, where: str) -> Any:
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        chosen = next(t for t in inner if t is not type(None))
        return None if value is None else _decode(chosen, value, where)
    if origin is list:
        _require(isinstance(value, list), where, "a list", value)
        return [_decode(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), where, "an object", value)
        return {key: _decode(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if expected is float:
        _require(_is_number(value), where, "a number", value)
        return float(value)
    is_wrong_bool = isinstance(value, bool) and expected is not bool
    _require(isinstance(value, expected) and not is_wrong_bool, where, expected.__name__, value)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(condition: bool, where: str, expected: str, value: Any) -> None:
    if not condition:
        raise SchemaError(f"{where} is {value!r}, expected {expected}")
