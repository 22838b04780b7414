# SPDX-License-Identifier: MIT
"""Speculative acceptance: what it keeps and draws has the target's distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels._errors import ArgumentTypeError, ArgumentValueError
from transformer_kernels.ops.decode._ops import SPECULATIVE_ACCEPT
from transformer_kernels.testing.decode import chi_square_passes

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
VOCABULARY = 12
DRAFTED = 2


def _distributions(rows: int, vocabulary: int = VOCABULARY) -> Tensor:
    return (torch.randn(rows, vocabulary) * 1.5).softmax(1)


def _drafts(draft: Tensor, batch: int, seed: int) -> Tensor:
    """Tokens of each drafted position, drawn with the same seeds as the acceptance."""
    columns = [
        F.sample_logits(row.log().expand(batch, -1), seed=seed, position=place)
        for place, row in enumerate(draft)
    ]
    return torch.stack(columns, 1)


@pytest.mark.parametrize(
    ("vocabulary", "kind"),
    [*((v, kind) for v in (1, 3, 700, 5001) for kind in DTYPES), (40_000, torch.bfloat16)],
    ids=str,
)
def test_kernel_and_formula_agree(vocabulary: int, kind: torch.dtype, device: str) -> None:
    batch = 9
    target = torch.randn(batch, 4, vocabulary).to(kind)
    draft = (target[:, :3] + torch.randn(batch, 3, vocabulary)).to(kind)
    tokens = draft.argmax(2)
    tokens[0, 1], tokens[1, 0] = -1, vocabulary
    lengths = torch.randint(0, 4, (batch,))
    for given, of, logits in (
        (draft, target, True),
        (draft.softmax(2), target.softmax(2), False),
        (None, target, True),
        (target[:, :3].softmax(2), target.softmax(2), False),
    ):
        for some in (None, lengths):
            found, expected = (
                F.speculative_accept(
                    tokens.to(place), None if given is None else given.to(place), of.to(place),
                    logits=logits, lengths=None if some is None else some.to(place), seed=5,
                    position=17, backend=backend,
                )
                for place, backend in ((device, "auto"), ("cpu", "reference"))
            )  # fmt: skip
            assert torch.equal(found[0].cpu(), expected[0])
            assert torch.equal(found[1].cpu(), expected[1])


@pytest.mark.parametrize("has_chance", [True, False])
def test_tokens_have_the_targets_distribution(has_chance: bool, device: str) -> None:
    """The first token, kept or drawn, has the target's first distribution; behind one that is kept
    comes the second."""
    batch = 60_000
    draft, target = _distributions(DRAFTED), _distributions(DRAFTED + 1)
    seed = int(torch.randint(2**60, (1,)))
    tokens = _drafts(draft, batch, seed)
    if not has_chance:
        tokens = draft.argmax(1).expand(batch, -1)
    accepted, token = F.speculative_accept(
        tokens.to(device),
        draft.to(device).expand(batch, -1, -1) if has_chance else None,
        target.to(device).expand(batch, -1, -1), seed=seed,
    )  # fmt: skip
    accepted, token = accepted.cpu(), token.cpu()
    follow = torch.cat([tokens, tokens[:, :1]], 1).scatter(1, accepted[:, None], token[:, None])
    for place in range(DRAFTED + 1):
        of = follow[accepted >= place, place]
        assert chi_square_passes(of.bincount(minlength=VOCABULARY), target[place])
    if has_chance:
        share = torch.minimum(draft[0], target[0]).sum().item()
        kept = (accepted > 0).sum()
        counts = torch.stack([kept, batch - kept])
        assert chi_square_passes(counts, torch.tensor([share, 1 - share]))


def test_an_equal_draft_is_kept() -> None:
    target = _distributions(4).expand(50, -1, -1)
    tokens = _drafts(target[0, :3], 50, 3)
    accepted, _ = F.speculative_accept(tokens, target[:, :3], target, seed=3)
    assert accepted.tolist() == [3] * 50


def test_lengths_and_no_draft(device: str) -> None:
    target = torch.eye(4, device=device)[None, [1, 2, 3]]  # certain tokens
    tokens = torch.tensor([[1, 2]], device=device)
    for length in range(3):
        lengths = torch.tensor([length], device=device)
        accepted, token = F.speculative_accept(tokens, None, target, lengths=lengths)
        assert (accepted.item(), token.item()) == (length, length + 1)
    accepted, token = F.speculative_accept(tokens[:, :0], None, target[:, :1])
    assert (accepted.item(), token.item()) == (0, 1)
    empty = F.speculative_accept(tokens[:0], None, target[:0])
    assert [tuple(x.shape) for x in empty] == [(0,), (0,)]


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_sequence_depends_on_nothing_but_its_own(backend: str, device: str) -> None:
    batch = 6
    target, draft = (torch.randn(batch, rows, 300, device=device) for rows in (4, 3))
    tokens = torch.randint(300, (batch, 3), device=device)
    seeds = torch.randint(2**60, (batch,), device=device)
    options: dict[str, Any] = {"logits": True, "backend": backend}
    accepted, token = F.speculative_accept(
        tokens, draft, target, seed=seeds, position=torch.arange(batch, device=device), **options
    )
    for row in range(batch):
        own = slice(row, row + 1)
        one = F.speculative_accept(
            tokens[own], draft[own], target[own], seed=seeds[own], position=row, **options
        )
        assert (one[0].item(), one[1].item()) == (accepted[row].item(), token[row].item())


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_what_only_the_device_knows(backend: str) -> None:
    """Lengths below 0 are 0, and a target without probability has the token -1."""
    target = torch.tensor([[[0.0, 1.0]] * 2, [[0.0, 0.0]] * 2], device="cuda")
    tokens = torch.tensor([[1], [0]], device="cuda")
    lengths = torch.tensor([-3, 1], device="cuda")
    accepted, token = F.speculative_accept(tokens, None, target, lengths=lengths, backend=backend)
    assert (accepted.tolist(), token.tolist()) == ([0, 0], [1, -1])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_strange_numbers(backend: str) -> None:
    """NaN and negative probabilities are none; a target without any is an error."""
    target = torch.tensor([[[torch.nan, -1.0, 0.5, 0.0]] * 2])
    tokens = torch.tensor([[0]])
    accepted, token = F.speculative_accept(tokens, None, target, backend=backend)
    assert (accepted.item(), token.item()) == (0, 2)
    for logits, nothing in ((False, 0.0), (True, -torch.inf)):
        with pytest.raises(ArgumentValueError, match="sequence 0 has no token that may be drawn"):
            F.speculative_accept(
                tokens, None, torch.full((1, 2, 4), nothing), logits=logits, backend=backend
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft": torch.ones(2, 3, 9)}, r"draft has shape \(2, 3, 9\), expected \(2, 3, 8\)"),
        ({"draft": torch.ones(2, 3, 8).double()}, "draft is float64, expected float32"),
        ({"draft_tokens": torch.ones(2, 2).long()}, r"draft_tokens has shape \(2, 2\), expected"),
        ({"draft_tokens": torch.ones(2, 3)}, "draft_tokens is float32, expected int64"),
        ({"target": torch.ones(2, 4)}, "target has 2 dimensions, expected 3"),
        ({"lengths": torch.tensor([1, 4])}, "lengths has 4, expected 0 to 3"),
        ({"seed": torch.ones(3).long()}, r"seed has shape \(3,\), expected \(2,\)"),
        ({"logits": 1}, "logits is 1, expected True or False"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    good = {
        "draft_tokens": torch.ones(2, 3).long(), "draft": torch.rand(2, 3, 8),
        "target": torch.rand(2, 4, 8),
    }  # fmt: skip
    with pytest.raises(
        (ArgumentValueError, ArgumentTypeError), match=f"speculative_accept: {message}"
    ):
        F.speculative_accept(**good | change)


def test_opcheck() -> None:
    numbers = torch.arange(2)
    torch.library.opcheck(
        SPECULATIVE_ACCEPT,
        (torch.ones(2, 3).long(), torch.rand(2, 3, 8), torch.rand(2, 4, 8), None, numbers, numbers,
         False),
    )  # fmt: skip
