# SPDX-License-Identifier: MIT
"""Tuned products: which calls are timed, how times are stored, and which product then runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as in_torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import transformer_kernels as tfk
from transformer_kernels import _times, tune
from transformer_kernels.ops.linear import _choice, _routed, _tuned
from transformer_kernels.ops.linear._tuned import Routes, Times
from transformer_kernels.testing.inputs import randn
from transformer_kernels.testing.passes import both_passes
from transformer_kernels.testing.tolerance import assert_close_to_reference

F = tfk.functional

OURS, TORCH = Times(ours=1.0, torch=2.0), Times(ours=2.0, torch=1.0)
ROUTES = Routes(y=3, dx=_tuned.TORCH, dweight=_tuned.OURS)
ROUTED = Times(ours=2.0, torch=3.0, routed=1.0, routes=ROUTES)
NOT_READ = "tune.txt is not read"
HEADER = _times._HEADER


def _forget_what_was_read() -> None:
    _times.mode.cache_clear()
    _times._warn.cache_clear()
    _times.read()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache" / "tune.txt"
    monkeypatch.setenv("TFK_TUNE_FILE", str(path))
    monkeypatch.delenv("TFK_TUNE")
    _forget_what_was_read()
    yield path
    monkeypatch.undo()
    _forget_what_was_read()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The products that are timed; ours is found to be faster each time."""
    products: list[str] = []

    def measure(x: Tensor, weight: Tensor, product: str) -> Times:
        products.append(product)
        return OURS

    monkeypatch.setattr(tune, "measure", measure)
    return products


def _operands(rows: int = 40, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return randn((rows, 24), dtype), randn((16, 24), dtype)


def _keep(x: Tensor, weight: Tensor, times: Times) -> None:
    _times.keep(_times.machine_of(x.device), _choice.timed_as(x, weight), times.named())


def _chosen(x: Tensor, weight: Tensor, **how: Any) -> str:
    reason, routes = _choice.choose("linear", x, weight, **how)
    if reason is not None:
        return "torch"
    return "ours" if routes is None else "routed"


# ---- the choice ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("times", [OURS, TORCH, ROUTED], ids=["ours", "torch", "routed"])
def test_what_was_faster_runs(times: Times) -> None:
    x, weight = _operands()
    assert _chosen(x, weight) == "torch"  # by rules: the product is small
    _keep(x, weight, times)
    assert _chosen(x, weight) == times.fastest
    _times.read()  # as another process
    assert _chosen(x, weight) == times.fastest


@pytest.mark.usefixtures("file")
def test_what_was_chosen_once_is_not_asked_again_until_there_are_new_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, asked = _choice.ask, []
    monkeypatch.setattr(_choice, "ask", lambda *a, **how: asked.append(a) or ask(*a, **how))
    x, weight = _operands()
    assert [_chosen(x, weight) for _ in range(3)] == ["torch"] * 3
    assert len(asked) == 1
    _chosen(x[1:], weight)
    assert len(asked) == 2
    _keep(x, weight, OURS)
    asked.clear()
    assert [_chosen(x, weight) for _ in range(3)] == ["ours"] * 3
    assert len(asked) == 1
    _times.read()
    assert _chosen(x, weight) == "ours"
    assert len(asked) == 2


@pytest.mark.usefixtures("file")
def test_a_layer_runs_by_the_routes_that_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = (t.requires_grad_() for t in _operands())
    bias = randn((16,), torch.float32).requires_grad_()
    _keep(x, weight, ROUTED)
    _times.read()  # as another process
    assert _choice.choose("linear", x, weight).routes == ROUTES
    ran = []

    def routed(*arguments: Any) -> Any:
        ran.append(arguments[3:])
        return _routed.call(*arguments)

    monkeypatch.setattr("transformer_kernels.ops.linear.linear._routed_call", routed)
    dy = randn((40, 16), torch.float32)
    # The CPU has none of cuBLASLt's algorithms: ours runs in the place of one.
    found = both_passes(F.linear, (x, weight, bias), dy)
    assert ran == [ROUTES]
    for a, b in zip(found, both_passes(in_torch.linear, (x, weight, bias), dy), strict=True):
        torch.testing.assert_close(a, b)
    for y in (_tuned.TORCH, 3):
        _keep(x, weight, ROUTED._replace(routes=ROUTES._replace(y=y)))
        with pytest.raises(ValueError, match="linear: bias has 15 elements, expected 16"):
            F.linear(x, weight, bias[:15])


@pytest.mark.parametrize(
    ("us", "fastest"), [(0.9, "routed"), (1.0, "ours"), (1.1, "ours")], ids=str
)
def test_routes_have_to_be_faster_than_both(us: float, fastest: str) -> None:
    assert OURS._replace(routed=us, routes=ROUTES).fastest == fastest
    assert str(ROUTES) == "y 3, dx torch, dweight ours"


@pytest.mark.usefixtures("file")
def test_of_other_products_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = _operands()
    _keep(x, weight, OURS)
    assert _chosen(x, weight) == "ours"
    assert _chosen(x[:39], weight) == "torch"
    assert _chosen(x.double(), weight.double()) == "torch"
    assert _chosen(x, weight.t().contiguous().t()) == "torch"
    assert _chosen(x, weight, activated=True) == "torch"
    assert _chosen(x, weight.requires_grad_()) == "torch"
    with torch.no_grad():
        assert _chosen(x, weight) == "ours"
        assert _chosen(x, weight, by_rules=True) == "torch"
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
        assert _chosen(x, weight) == "torch"


@pytest.mark.usefixtures("file")
def test_what_only_pytorch_can_do_stays_there() -> None:
    x, weight = _operands()
    _keep(x, weight, OURS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _chosen(x, weight) == "torch"
    assert _choice.refusal("linear", x, weight.as_subclass(_Marked)) is not None
    assert _choice.refusal("linear", x.to("meta"), weight.to("meta")) is not None


class _Marked(torch.Tensor):
    pass


@pytest.mark.usefixtures("file")
def test_the_table_may_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = _operands()
    _keep(x, weight, OURS)
    monkeypatch.setenv("TFK_TUNE", "0")
    _forget_what_was_read()
    assert _chosen(x, weight) == "torch"


# ---- what is timed ------------------------------------------------------------------------------


@pytest.mark.usefixtures("file")
def test_each_product_is_timed_once(timed: list[str]) -> None:
    x, weight = _operands()
    F.linear(x, weight)
    assert not timed
    with tfk.tuning():
        for _ in range(2):
            F.linear(x, weight)
            F.linear_act(x.requires_grad_(), weight, activation="silu")
            x.requires_grad_(False)
    assert timed == ["linear float32 40x24x16", "linear_act float32 40x24x16 dx"]
    F.linear(x[:20], weight)
    assert len(timed) == 2


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.linear(x[:0], w),
        lambda x, w: torch.compile(F.linear, backend="eager")(x, w),
        lambda x, w: torch.vmap(F.linear, (0, None))(x, w),
        lambda x, w: F.linear(x, w, backend="cpu"),
        lambda x, w: F.linear_cross_entropy(x, w, torch.zeros(len(x), dtype=torch.long)),
    ],
    ids=["empty", "compiled", "transformed", "asked for", "in chunks"],
)
def test_what_is_not_timed(call: Callable[..., Any], timed: list[str]) -> None:
    with tfk.tuning():
        call(*_operands())
    assert not timed


@pytest.mark.usefixtures("file")
def test_fake_tensors_are_not_timed(timed: list[str]) -> None:
    with FakeTensorMode() as fake, tfk.tuning():
        F.linear(*(fake.from_tensor(tensor) for tensor in _operands()))
    assert not timed


@pytest.mark.usefixtures("file", "timed")
def test_bad_operands_are_said_as_ever() -> None:
    x, weight = _operands()
    with tfk.tuning(), pytest.raises(ValueError, match="linear: weight has 23 columns, expected"):
        F.linear(x, weight[:, 1:])


def test_timing_changes_nothing_of_the_caller(device: str, dtype: torch.dtype, file: Path) -> None:
    x = randn((512, 256), dtype, device).requires_grad_()
    weight = randn((384, 256), dtype, device).requires_grad_()
    if (reason := _choice.why_not(x, weight)) is not None:
        pytest.skip(reason)
    before, state = (x.detach().clone(), weight.detach().clone()), torch.get_rng_state()
    theirs, exact = x @ weight.t(), x.double() @ weight.double().t()
    with tfk.tuning():
        # A checkpoint counts the tensors that its function keeps, in both of its runs.
        z = checkpoint(F.linear, x, weight, use_reentrant=False)
    z.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x.detach(), before[0])
    assert torch.equal(weight.detach(), before[1])
    assert_close_to_reference(z, theirs, exact, "y", magnitude=4 * 256**0.5)
    ((_, product, us),) = _times.records()
    assert product.endswith(" dx dweight")
    assert min(us.values()) > 0


class _Watch(TorchDispatchMode):
    """The ops that a call runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("activated", [False, True])
@pytest.mark.parametrize("who", [*tune.PROVIDERS, Routes(y=_tuned.TORCH), Routes()], ids=str)
def test_who_is_timed_runs(who: str | Routes, activated: bool) -> None:
    """All calls are of the same product; PyTorch's calls no product of ours."""
    x, weight = _operands()
    with _Watch() as watch:
        y = tune._call(who, activated and isinstance(who, str), [])(x, weight, torch.zeros(16))
    ours = any("linear" in name and "transformer_kernels" in name for name in watch.names)
    theirs = any("mm" in name for name in watch.names)
    is_torchs = who == "torch" or who == Routes(y=_tuned.TORCH)
    assert (ours, theirs) == (not is_torchs, is_torchs)
    z = x @ weight.t()
    if activated and isinstance(who, str):
        z = in_torch.gelu(z, approximate="tanh")
    torch.testing.assert_close(y, z)


@pytest.mark.parametrize(
    ("wanted", "fastest", "expected"),
    [
        ([], {"y": -2}, None),  # PyTorch's for all of it is timed already
        (["x"], {"y": -1, "dx": -1}, None),
        (["x"], {"y": -1, "dx": -2}, Routes(dx=-2)),
        (["x", "weight"], {"y": -2, "dx": -1, "dweight": -2}, Routes(-2, -1, -2)),
    ],
    ids=["torch", "ours", "dx", "all"],
)
def test_the_fastest_route_of_each_product(
    wanted: list[str], fastest: dict[str, int], expected: Routes | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    quickest = iter(fastest.values())

    def timed(calls: dict[str, Any], *_: Any) -> dict[str, float]:
        assert set(calls) == {"-1", "-2"}  # algorithms that are not offered are not timed
        chosen = str(next(quickest))
        return {name: 1.0 if name == chosen else 2.0 for name in calls}

    monkeypatch.setattr(tune, "_timed", timed)
    found = tune._fastest_routes((*_operands(), torch.zeros(16)), wanted, 0.0)
    assert found == expected
    assert list(quickest) == []


# ---- the file -----------------------------------------------------------------------------------


def _line(of: Times = OURS, **changes: str) -> str:
    fields = {
        "versions": _times._versions(),
        "machine": _times.machine_of(torch.device("cpu")),
        "timed": _choice.timed_as(*_operands()),
        "times": "\t".join(f"{name}={us}" for name, us in of.named().items()),
        **changes,
    }
    return "\t".join(fields.values())


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*lines, ""]))
    _forget_what_was_read()


_BROKEN: dict[str, Callable[[], list[str]]] = {
    "another format": lambda: ['{"format": 1, "records": []}'],
    "nothing": list,
    "half a line": lambda: [HEADER, _line()[:20]],
    "a field less": lambda: [HEADER, _line().partition("\t")[2].partition("\t")[2]],
    "a time of text": lambda: [HEADER, _line(times="ours=\ttorch=1")],
    "a time of 0": lambda: [HEADER, _line(times="ours=0\ttorch=1")],
    "no time": lambda: [HEADER, _line(times="ours")],
    "a time and more": lambda: [HEADER, _line(times="ours=1us")],
}


@pytest.mark.parametrize("content", _BROKEN.values(), ids=_BROKEN)
def test_a_corrupt_file_is_said_and_replaced(content: Callable[[], Any], file: Path) -> None:
    x, weight = _operands()
    with pytest.warns(RuntimeWarning, match=NOT_READ):
        _write(file, *content())
    assert _chosen(x, weight) == "torch"
    _keep(x, weight, OURS)
    _forget_what_was_read()
    assert _chosen(x, weight) == "ours"


@pytest.mark.parametrize("route", ["cat", "y 3, dx 4", "y -3, dx ours, dweight ours"])
def test_an_unknown_route_is_passed_over(route: str, file: Path) -> None:
    x, weight = _operands()
    _write(file, HEADER, _line(ROUTED._replace(routes=route)))
    assert _choice.choose("linear", x, weight) == (None, None)
    _write(file, HEADER, _line(ROUTED))
    assert _choice.choose("linear", x, weight) == (None, ROUTES)


def test_a_file_that_is_a_folder(file: Path) -> None:
    file.mkdir(parents=True)
    x, weight = _operands()
    with pytest.warns(RuntimeWarning, match=NOT_READ):
        _forget_what_was_read()
    with pytest.warns(RuntimeWarning, match="is not written .*for this process alone"):
        _keep(x, weight, OURS)
    assert _chosen(x, weight) == "ours"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_written(file: Path) -> None:
    file.parent.write_text("")  # where the folder would be
    x, weight = _operands()
    with pytest.warns(RuntimeWarning) as said:
        _keep(x, weight, OURS)
    assert "is not written" in str(said[-1].message)
    assert _chosen(x, weight) == "ours"


@pytest.mark.parametrize("field", ["versions", "machine"])
def test_times_of_others_are_kept_and_not_used(field: str, file: Path) -> None:
    line = _line(**{field: "another"})
    _write(file, HEADER, line)
    x, weight = _operands()
    assert _chosen(x, weight) == "torch"
    _keep(x, weight, OURS)
    _keep(x, weight, TORCH)  # timed anew
    _forget_what_was_read()
    assert _choice.refusal("linear", x, weight) == "it took 2.0 us here, PyTorch's 1.0"
    assert file.read_text().splitlines() == [HEADER, line, _line(TORCH)]


def test_versions_are_those_of_all_that_a_time_depends_on() -> None:
    found = _times._versions()
    assert all(text in found for text in (tfk.__version__, torch.__version__))
    assert _times.library_build() in found


@pytest.mark.usefixtures("file")
def test_what_another_process_wrote_is_not_lost(file: Path) -> None:
    _keep(*_operands(3), OURS)
    others = _line(timed="linear float32 4x24x16")
    file.write_text(file.read_text() + others + "\n")
    _keep(*_operands(5), OURS)
    rows = [timed.split()[2] for _, timed, _ in _times.records()]
    assert sorted(rows) == ["3x24x16", "4x24x16", "5x24x16"]


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TFK_TUNE_FILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tfk.tune_file() == tmp_path / "transformer_kernels" / "tune.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tfk.tune_file() == tmp_path / ".cache" / "transformer_kernels" / "tune.txt"


# ---- the variable -------------------------------------------------------------------------------


def _run(mode: str, path: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TFK_TUNE": mode, "TFK_TUNE_FILE": str(path)}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_process_that_times_what_it_meets(tmp_path: Path) -> None:
    path = tmp_path / "tune.txt"
    code = "import torch, transformer_kernels as tfk; tfk.nn.Linear(24, 16)(torch.ones(2, 24))"
    done = _run("1", path, code)
    assert done.returncode == 0, done.stderr
    (line,) = path.read_text().splitlines()[1:]
    assert "\tlinear float32 2x24x16 dweight\t" in line


def test_an_unknown_value_is_refused(tmp_path: Path) -> None:
    done = _run("yes", tmp_path / "tune.txt", "import transformer_kernels")
    assert done.returncode != 0
    assert "TFK_TUNE is 'yes', expected 0 or 1" in done.stderr
