# SPDX-License-Identifier: MIT
"""The choice of a token, on logits whose distribution is known."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.models import Sampling

SHARES = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15], [0.7, 0.05, 0.05, 0.1, 0.1]])
LOGITS = SHARES.log() + torch.tensor([[2.0], [-5.0]])  # what is added to all changes nothing


def distribution(sampling: Sampling, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    """By token."""
    tokens, shares = sampling.candidates(logits)
    return torch.zeros(len(logits), logits.shape[1]).scatter(1, tokens, shares)


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
    wanted = normalised([[0, 0.4, 0, 0.3, 0], [0.7, 0, 0, 0.1, 0]])  # of equal ones the first
    torch.testing.assert_close(distribution(Sampling(top_k=2)), wanted)
    assert torch.equal(distribution(Sampling(top_k=1)).argmax(-1), torch.tensor([1, 0]))


@pytest.mark.parametrize(
    ("top_p", "rows"),
    [
        (1e-9, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        (0.6, [[0, 0.4, 0, 0.3, 0], [1, 0, 0, 0, 0]]),
        (0.75, [[0, 0.4, 0, 0.3, 0.15], [0.7, 0, 0, 0.1, 0]]),
        (0.86, [[0.1, 0.4, 0, 0.3, 0.15], [0.7, 0, 0, 0.1, 0.1]]),
    ],
)
def test_top_p_keeps_the_fewest_that_are_so_probable(top_p, rows):
    torch.testing.assert_close(distribution(Sampling(top_p=top_p)), normalised(rows))


def test_temperature_then_top_k_then_top_p():
    """Squares of the three likeliest are 16, 9 and 2.25; the first is 0.59 of them."""
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


def test_half_precision_is_widened():
    assert torch.equal(Sampling(top_k=1).draw(LOGITS.bfloat16()), torch.tensor([1, 0]))
