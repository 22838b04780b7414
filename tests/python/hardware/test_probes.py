# SPDX-License-Identifier: MIT
"""The probes' kernels do the work that they are said to do; what they find on a card is likely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_kernels import hardware

probes = pytest.importorskip("transformer_kernels.hardware.probes_triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 64


def _run(step: Any, x: torch.Tensor, rounds: int, steps: int) -> torch.Tensor:
    y = x.to(DEVICE, copy=True)
    probes._steps[len(x) // BLOCK,](y, rounds, step, steps, BLOCK)
    return y.cpu()


@pytest.mark.parametrize(
    ("step", "formula"),
    [
        ("_multiplied_and_added", lambda x: x * x + x),
        ("_exponential", lambda x: torch.exp2(-x)),
    ],
)
def test_each_step_follows_the_one_before(step: str, formula: Callable[..., Any]) -> None:
    x = -torch.rand(2 * BLOCK)
    expected = x
    for _ in range(6):
        expected = formula(expected)
    torch.testing.assert_close(_run(getattr(probes, step), x, 3, 2), expected, rtol=1e-4, atol=1e-6)


def test_numbers_change_places_within_banks() -> None:
    """Each lane of a warp reads from a bank of its own."""
    x = torch.arange(float(2 * BLOCK))
    found = _run(probes._through_shared_memory, x, 1, 1).view(-1, BLOCK // 32, 32)
    for group, numbers in enumerate(found[0]):
        assert torch.equal(numbers, torch.roll(x[32 * group : 32 * (group + 1)], -group))
    at = torch.arange(1024)
    banks = (at // 32 * 32 + (at + at // 32) % 32) % 32
    for lanes in (banks.view(-1, 32), banks.view(-1, 32, 4).transpose(1, 2).reshape(-1, 32)):
        assert all(len(set(one.tolist())) == 32 for one in lanes)


def test_draws_and_sums() -> None:
    x = torch.rand(2 * BLOCK, device=DEVICE)
    before = x.clone()
    probes._draws[2,](x, 1, 1, BLOCK)
    assert len(x.view(torch.int32).unique()) > BLOCK
    assert not torch.equal(x.view(torch.int32), before.view(torch.int32))
    for addresses in (1, 16, BLOCK):
        x = torch.zeros(addresses, device=DEVICE)
        probes._adds[2,](x, addresses, BLOCK)
        assert torch.equal(x.cpu(), torch.full((addresses,), 2.0 * BLOCK / addresses))


def test_a_stored_card_is_likely() -> None:
    check(hardware.read(Path(__file__).parents[3] / "benchmarks" / "hardware" / "h200.json"))


# ---- on a card ----------------------------------------------------------------------------------


@pytest.mark.cuda
def test_a_card_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = torch.cuda.get_rng_state()
    card = hardware.measure_cuda()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert hardware.kept("cuda") == card
    assert set(card.origins.values()) == {"measured"}
    check(card)


def check(card: hardware.Hardware) -> None:
    """Numbers of cards since Turing, of any size; rates are those of one of its units in 1e9 a
    second, and so at a clock between a half and three times that."""
    assert 0.1e3 < card.copy_gbps < 20e3
    assert max(card.copies.values()) > card.copy_gbps
    assert 0.2 < card.launch_us < card.host_us < 1e3
    assert card.products["bfloat16"] > card.products["float32"] > 1.0
    each = {name: rate / card.units for name, rate in card.rates.items()}
    each["exponentials"] = card.exponentials / card.units
    likely = {
        "operations": (16, 512), "float16 operations": (16, 1024), "float64 operations": (0.5, 256),
        "exponentials": (4, 128), "random": (4, 256), "shared bytes": (16, 512),
        "atomics": (0.02, 64),
    }  # fmt: skip
    for name, (least, most) in likely.items():
        assert least < each[name] < most, name
    assert 0.05 < card.rates["atomics in one place"] < card.rates["atomics"]
