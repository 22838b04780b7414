# SPDX-License-Identifier: MIT
"""Packed weights that are kept between calls."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import transformer_kernels as tfk
from transformer_kernels import functional as F
from transformer_kernels.ops.linear import _kept
from transformer_kernels.ops.linear._kept import KEPT
from transformer_kernels.testing.tolerance import assert_close_to_reference

_COLUMNS, _TERMS = 640, 512
_raw = torch.ops.transformer_kernels


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is kept from other tests, and packing pays whatever the processor is."""
    monkeypatch.setattr(_kept, "_pays", lambda *_: True)
    monkeypatch.setattr(KEPT, "most_bytes", 2**30)
    KEPT.drop_all()
    yield
    KEPT.drop_all()


def _layer(dtype: torch.dtype = torch.float32) -> tuple[Tensor, nn.Parameter, Tensor]:
    x = torch.randn(3, _TERMS, dtype=dtype)
    return (
        x,
        nn.Parameter(torch.randn(_COLUMNS, _TERMS, dtype=dtype)),
        torch.randn(_COLUMNS).to(dtype),
    )


def _use(x: Tensor, weight: Tensor, bias: Tensor | None = None, times: int = 2) -> Tensor:
    with torch.no_grad():
        for _ in range(times):
            y = F.linear(x, weight, bias)
    return y


def _expect(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    exact, stock = nn.functional.linear(*wide), nn.functional.linear(x, weight, bias)
    assert_close_to_reference(y, stock, exact, magnitude=_TERMS**0.5)


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("by_columns", [False, True])
def test_products_of_packed_weights(of: torch.dtype, rows: int, by_columns: bool) -> None:
    _, weight, bias = _layer(of)
    if by_columns:
        weight = nn.Parameter(weight.detach().t().contiguous()).t()
    x = torch.randn(2, rows, _TERMS, dtype=of)[1]
    y = _use(x, weight, bias)
    assert KEPT.bytes >= weight.nbytes
    _expect(y, x, weight.detach(), bias)
    with torch.no_grad():
        h = F.linear_act(x, weight, bias, "relu")
    torch.testing.assert_close(h, y.relu(), rtol=0, atol=0)


def test_a_weight_is_packed_at_its_second_use() -> None:
    x, weight, _ = _layer()
    _use(x, weight, times=1)
    assert KEPT.bytes == 0
    _use(x, weight, times=1)
    assert KEPT.bytes >= weight.nbytes


def test_a_change_in_place_is_seen() -> None:
    x, weight, bias = _layer()
    before = _use(x, weight, bias)
    with torch.no_grad():
        weight.mul_(2)
    after = _use(x, weight, bias, times=1)
    assert KEPT.bytes == 0
    assert not torch.equal(before, after)
    _expect(after, x, weight.detach(), bias)
    _expect(_use(x, weight, bias), x, weight.detach(), bias)
    assert KEPT.bytes >= weight.nbytes


def test_an_optimizer_and_a_state_dict_are_seen() -> None:
    layer, other = nn.Linear(_TERMS, _COLUMNS), nn.Linear(_TERMS, _COLUMNS)
    x = torch.randn(3, _TERMS)
    _use(x, layer.weight, layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(x).square().mean().backward()
    optimizer.step()
    _expect(_use(x, layer.weight, layer.bias), x, layer.weight.detach(), layer.bias.detach())
    layer.load_state_dict(other.state_dict())
    y = _use(x, layer.weight, layer.bias, times=1)
    _expect(y, x, other.weight.detach(), other.bias.detach())
    layer.load_state_dict({k: v + 1 for k, v in other.state_dict().items()}, assign=True)
    y = _use(x, layer.weight, layer.bias)
    _expect(y, x, other.weight.detach() + 1, other.bias.detach() + 1)


def test_other_memory_is_seen() -> None:
    x, weight, _ = _layer()
    _use(x, weight)
    weight.data = torch.randn_like(weight)
    _expect(_use(x, weight, times=1), x, weight.detach())
    _expect(_use(x, weight), x, weight.detach())


def test_repack_follows_a_change_without_a_version() -> None:
    layer = nn.Linear(_TERMS, _COLUMNS)
    x = torch.randn(3, _TERMS)
    before = _use(x, layer.weight, layer.bias)
    layer.weight.data.mul_(2)
    assert torch.equal(_use(x, layer.weight, layer.bias), before)  # as documented
    tfk.repack(layer)
    _expect(_use(x, layer.weight, layer.bias), x, layer.weight.detach(), layer.bias.detach())


def test_views_of_one_tensor_are_weights_of_their_own() -> None:
    both = nn.Parameter(torch.randn(2 * _COLUMNS, _TERMS))
    x = torch.randn(3, _TERMS)
    for _ in range(2):
        for part in both.chunk(2):
            _expect(_use(x, part, times=1), x, part.detach())
    assert KEPT.bytes >= both.nbytes
    with torch.no_grad():
        both.neg_()
    for part in both.chunk(2):
        _expect(_use(x, part), x, part.detach())


def test_what_is_kept_goes_with_the_weight() -> None:
    x, weight, _ = _layer()
    _use(x, weight)
    assert KEPT.bytes > 0
    del weight
    gc.collect()
    assert KEPT.bytes == 0


def test_copies_and_files_have_nothing_of_it() -> None:
    layer = nn.Linear(_TERMS, _COLUMNS)
    x = torch.randn(3, _TERMS)
    y = _use(x, layer.weight, layer.bias)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.zero_()
    assert torch.equal(_use(x, layer.weight, layer.bias), y)
    assert torch.equal(_use(x, twin.weight, twin.bias), twin.bias.expand_as(y))
    file = io.BytesIO()
    torch.save(layer, file)
    assert len(file.getvalue()) < 1.5 * layer.weight.nbytes


def test_no_weight_is_packed_with_gradients_or_without_a_version() -> None:
    x, weight, _ = _layer()
    for _ in range(3):
        F.linear(x, weight)
        F.linear(x.clone().requires_grad_(), weight.detach())
    assert KEPT.bytes == 0
    with torch.inference_mode():
        made = torch.randn(_COLUMNS, _TERMS)
        for _ in range(3):
            F.linear(x, made)
        assert KEPT.bytes == 0
        for _ in range(2):
            y = F.linear(x, weight)
        assert KEPT.bytes > 0
    _expect(y, x, weight.detach())


def test_no_more_bytes_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, first, _), (_, second, _) = _layer(), _layer()
    monkeypatch.setattr(KEPT, "most_bytes", first.nbytes)
    _use(x, first)
    used = KEPT.bytes
    _expect(_use(x, second, times=3), x, second.detach())
    assert KEPT.bytes == used > 0
    monkeypatch.setattr(KEPT, "most_bytes", 0)
    _expect(_use(x, first), x, first.detach())


def test_errors_are_those_of_other_calls() -> None:
    x, weight, _ = _layer()
    _use(x, weight)
    with torch.no_grad(), pytest.raises(ValueError, match="columns"):
        F.linear(torch.randn(3, 7), weight)
    with torch.no_grad(), pytest.raises(TypeError, match="float32"):
        F.linear(x, weight.double())
    with pytest.raises(TypeError, match="weights is int, expected a Tensor or a Module"):
        tfk.repack(3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="packed"):
        _raw.linear_packed(x, weight, torch.zeros(8, dtype=torch.uint8), None)


def test_threads_share_a_packed_weight() -> None:
    x, weight, bias = _layer()
    found: list[Tensor] = []

    def use() -> None:
        found.extend(_use(x, weight, bias, times=1) for _ in range(20))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for y in found:
        _expect(y, x, weight.detach(), bias)
    assert KEPT.bytes == _raw.pack_weight(weight.detach()).nbytes


def test_mlps_use_packed_weights() -> None:
    x = torch.randn(2, _TERMS)
    up, gate = torch.randn(_COLUMNS, _TERMS), torch.randn(_COLUMNS, _TERMS)
    down = torch.randn(_TERMS, _COLUMNS)
    with torch.no_grad():
        for _ in range(3):
            y = F.mlp(x, up, None, down)
            z = F.gated_mlp(x, gate, up, down)
    assert KEPT.bytes >= up.nbytes + gate.nbytes + down.nbytes
    torch.testing.assert_close(y, nn.functional.gelu(x @ up.T) @ down.T, rtol=1e-4, atol=1e-2)
    expected = (nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-1)


def test_nothing_is_kept_unless_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("TFK_PACKED_BYTES", raising=False)
    assert _kept._bytes_allowed() == 0
    monkeypatch.setenv("TFK_PACKED_BYTES", "4096")
    assert _kept._bytes_allowed() == 4096
    monkeypatch.setenv("TFK_PACKED_BYTES", "1GB")
    with pytest.raises(ValueError, match="TFK_PACKED_BYTES is '1GB', expected a number of bytes"):
        _kept._bytes_allowed()


def test_a_traced_call_takes_the_weight_that_it_is_given():
    x, weight, _ = _layer()
    with torch.no_grad():
        _use(x, weight)
        traced = make_fx(lambda x, weight: F.linear(x, weight))(x, weight)
        other = torch.randn_like(weight)
        _expect(traced(x, other), x, other)


def test_deterministic_calls_are_alike():
    x, weight, bias = _layer()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = _use(x, weight, bias, times=1), _use(x, weight, bias, times=2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
