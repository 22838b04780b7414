# SPDX-License-Identifier: MIT
"""The choice of a token, on logits whose distribution is known."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from transformer_kernels.functional import sample_logits
from transformer_kernels.models import Sampling

SHARES = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15], [0.7, 0.05, 0.05, 0.1, 0.1]])
LOGITS = SHARES.log() + torch.tensor([[2.0], [-5.0]])  # what is added to all changes nothing


def distribution(sampling: Sampling, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    """The probability of each token."""
    found = sample_logits(logits, probabilities=True, **asdict(sampling))
    return found.probabilities


def normalised(rows: list[list[float]]) -> torch.Tensor:
    wanted = torch.tensor(rows)
    return wanted / wanted.sum(-1, keepdim=True)


def test_without_limits_it_is_softmax():
    torch.testing.assert_close(distribution(Sampling()), SHARES)
    torch.testing.assert_close(distribution(Sampling(top_p=1.0, top_k=100)), SHARES)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power(temperature):
    wanted = SHARES ** (1 / temperature)
    wanted /= wanted.sum(-1, keepdim=True)
    torch.testing.assert_close(distribution(Sampling(temperature)), wanted)


def test_top_k_keeps_the_likeliest():
    wanted = normalised([[0, 0.4, 0, 0.3, 0], [0.7, 0, 0, 0.1, 0.1]])  # with what equals the last
    torch.testing.assert_close(distribution(Sampling(top_k=2)), wanted)
    assert torch.equal(distribution(Sampling(top_k=1)).argmax(-1), torch.tensor([1, 0]))


@pytest.mark.parametrize(
    ("top_p", "rows"),
    [
        (1e-9, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        (0.6, [[0, 0.4, 0, 0.3, 0], [1, 0, 0, 0, 0]]),
        (0.75, [[0, 0.4, 0, 0.3, 0.15], [0.7, 0, 0, 0.1, 0.1]]),  # equal ones together
        (0.86, [[0.1, 0.4, 0, 0.3, 0.15], [0.7, 0, 0, 0.1, 0.1]]),
    ],
)
def test_top_p_keeps_the_fewest_that_are_so_probable(top_p, rows):
    torch.testing.assert_close(distribution(Sampling(top_p=top_p)), normalised(rows))


def test_temperature_then_top_k_then_top_p():
    """Squares of the three likeliest are 16, 9 and 2.25; the first has 0.59 of their sum."""
    found = distribution(Sampling(0.5, top_k=3, top_p=0.65))[:1]
    torch.testing.assert_close(found, normalised([[0, 16, 0, 9, 0]]))


def test_draws_follow_the_distribution():
    count = 20_000
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(top_k=4, top_p=0.9)
    drawn = sampling.draw(LOGITS[:1].expand(count, -1), generator)
    found = torch.bincount(drawn, minlength=5) / count
    torch.testing.assert_close(found, distribution(sampling)[0], rtol=0, atol=0.02)
    assert set(drawn.tolist()) == {0, 1, 3, 4}


def test_a_temperature_of_0_draws_nothing():
    before = torch.get_rng_state()
    assert torch.equal(Sampling(0).draw(LOGITS), torch.tensor([1, 0]))
    assert torch.equal(torch.get_rng_state(), before)


def test_extreme_logits():
    logits = torch.tensor([[1e30, -1e30, 0.0], [float("-inf"), 5.0, float("-inf")]])
    for sampling in (Sampling(), Sampling(1e-3), Sampling(top_p=0.1), Sampling(1e-3, 2, 0.5)):
        assert sampling.draw(logits).tolist() == [0, 1]


@pytest.mark.parametrize("temperature", [1e-30, 1e-37, 1e-38, 1e-40, 1e-45, 5e-324, 0.0])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_cold_is_the_likeliest(temperature, kind, device):
    logits = 50 * torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    logits = logits.to(device, kind)
    logits[1] = torch.finfo(kind).max
    logits[2, 5:] = -torch.inf
    if temperature < 2.0**-126:
        assert torch.equal(Sampling(temperature).draw(logits), logits.argmax(-1))
    drawn = Sampling(temperature, top_k=40, top_p=0.9).draw(logits)
    likeliest = logits.gather(1, drawn[:, None]) == logits.amax(-1, keepdim=True)
    assert likeliest.all()


def test_of_equal_tokens_each_is_drawn_but_at_0():
    equal = torch.tensor([[3.0, 7.0, 7.0]]).expand(200, -1)
    assert set(Sampling(1e-37).draw(equal).tolist()) == {1, 2}
    assert set(Sampling(1e-38).draw(equal).tolist()) == {1}


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e300])
def test_hot_is_uniform_where_anything_may_be_drawn(temperature, device):
    logits = torch.tensor([[1e3, -1e3, 0.0, -torch.inf]], device=device)
    found = distribution(Sampling(temperature), logits)
    wanted = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0]], device=device)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_infinite_logits_and_nan(options, device):
    inf, nan = torch.inf, torch.nan
    rows = [[inf, 1.0, 2.0], [-inf, -inf, 0.0], [0.0, nan, 9.0]]
    drawn = Sampling(0.7, **options).draw(torch.tensor(rows, device=device))
    assert drawn.tolist() == [0, 2, 1]


@pytest.mark.parametrize("top_p", [1e-30, 1e-45, 5e-324])
def test_one_token_is_kept_at_least(top_p, device):
    assert Sampling(top_p=top_p).draw(LOGITS.to(device)).tolist() == [1, 0]


def test_more_tokens_may_be_asked_for_than_there_are():
    torch.testing.assert_close(distribution(Sampling(top_k=2**62)), SHARES)


def test_a_sequence_does_not_depend_on_its_neighbours():
    sampling, logits = Sampling(top_k=20), torch.randn(50, 30)
    seeds = sampling.seeds(50, logits.device, torch.Generator().manual_seed(7))
    drawn = sampling.draw(logits, seeds=seeds, position=3)
    again = sampling.draw(logits[9:], seeds=seeds[9:], position=3)
    assert torch.equal(drawn[9:], again)
    assert not torch.equal(drawn, sampling.draw(logits, seeds=seeds, position=4))
    by_generator = sampling.draw(logits, torch.Generator().manual_seed(7), position=3)
    assert torch.equal(drawn, by_generator)


def test_half_precision_is_widened():
    assert torch.equal(Sampling(top_k=1).draw(LOGITS.bfloat16()), torch.tensor([1, 0]))
