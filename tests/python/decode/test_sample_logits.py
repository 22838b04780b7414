# SPDX-License-Identifier: MIT
"""The choice of tokens against sorts in float64, transformers' processors and exact counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels import functional as F
from transformer_kernels._errors import ArgumentTypeError, ArgumentValueError
from transformer_kernels.ops.decode._ops import SAMPLE_LOGITS
from transformer_kernels.testing.decode import chi_square_passes, filtered

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BATCH = 7
FILTERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7},
    {"top_k": 1},
    {"top_k": 9},
    {"top_k": 700},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 2.0},
    {"min_p": 0.05},
    {"typical_p": 0.8},
    {"typical_p": 0.2},
    {"temperature": 1.3, "top_k": 300, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9},
)


def _some_logits(batch: int, vocabulary: int, device: str = "cpu") -> Tensor:
    return torch.randn(batch, vocabulary, device=device) * 4


def _sampled(logits: Tensor, **options: Any) -> F.SampledTokens:
    found = F.sample_logits(logits, probabilities=True, **options)
    assert isinstance(found, F.SampledTokens)
    return found


def _probabilities(logits: Tensor, **options: Any) -> Tensor:
    found = _sampled(logits, **options).probabilities
    assert found is not None
    return found


def _parameters(batch: int) -> dict[str, Any]:
    """Every stage, other numbers in each row, some of them at their ends."""
    at_ends = torch.tensor([0.0, 1.0])
    return {
        "temperature": torch.cat([torch.tensor([0.0, 1e-30, 1e30]), 0.1 + torch.rand(batch - 3)]),
        "top_k": torch.randint(0, 100, (batch,)),
        "top_p": torch.cat([at_ends, torch.rand(batch - 2)]),
        "min_p": torch.cat([at_ends.flip(0), torch.rand(batch - 2) * 0.1]),
        "typical_p": torch.cat([torch.rand(batch - 2), at_ends]),
        "repetition_penalty": 0.5 + torch.rand(batch),
        "presence_penalty": torch.randn(batch),
        "frequency_penalty": torch.randn(batch),
    }


def _on(device: str, options: dict[str, Any]) -> dict[str, Any]:
    return {n: x.to(device) if isinstance(x, Tensor) else x for n, x in options.items()}


# ---- the same bits everywhere -------------------------------------------------------------------


def _check_bits(logits: Tensor, device: str, **options: Any) -> None:
    """Compares the kernel on a device with the formula on the CPU."""
    options |= {"seed": 11, "position": 3, "probabilities": True}
    found: Any = F.sample_logits(logits.to(device), **_on(device, options))
    expected: Any = F.sample_logits(logits, backend="reference", **options)
    for name, one, other in zip(found._fields, found, expected, strict=True):
        if name.endswith("log_probs"):  # logarithms of the same number
            torch.testing.assert_close(one.cpu(), other, equal_nan=True)
        else:
            torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 33, 1000, 20011])
def test_kernel_and_formula_give_the_same_bits(
    vocabulary: int, kind: torch.dtype, device: str
) -> None:
    logits = _some_logits(BATCH, vocabulary).to(kind)
    if vocabulary > 2:
        logits[:, ::5] = logits[:, :1]  # ties
        logits[1, 1] = torch.inf
    words = torch.randint(-(2**31), 2**31, (BATCH, (vocabulary + 31) // 32)).int()
    words[:, 0] |= 1
    previous = torch.randint(-1, vocabulary + 1, (BATCH, 40))
    prompt = torch.randint(0, 41, (BATCH,))
    more: tuple[dict[str, Any], ...] = (
        {"previous": previous, "prompt_lengths": prompt} | _parameters(BATCH),
        {"previous": previous.int(), "repetition_penalty": 1.3, "allowed": words},
        {"bias": torch.randn(BATCH, vocabulary), "allowed": torch.arange(vocabulary) % 3 == 0},
    )
    for options in (*FILTERS, *more):
        _check_bits(logits, device, log_probs=min(3, vocabulary), **options)


@pytest.mark.parametrize(
    ("vocabulary", "kind"),
    [(131072, torch.float32), (300007, torch.bfloat16), (2**20, torch.bfloat16)],
    ids=str,
)
def test_long_rows_give_the_same_bits(vocabulary: int, kind: torch.dtype, device: str) -> None:
    """Rows that a cluster of CTAs shares, in shared memory or, where they are too long, beside."""
    logits = _some_logits(2, vocabulary).to(kind)
    previous = torch.randint(vocabulary, (2, 3000))
    for options in (
        {}, {"temperature": 0.0}, {"top_k": 50, "top_p": 0.9}, {"typical_p": 0.4},
        {"previous": previous, "frequency_penalty": 0.1, "top_p": 0.7},
    ):  # fmt: skip
        _check_bits(logits, device, log_probs=20, **options)


def test_a_token_depends_on_nothing_but_its_own(device: str) -> None:
    logits = _some_logits(BATCH, 3000, device)
    options = _on(device, _parameters(BATCH))
    options |= {"seed": torch.randint(2**60, (BATCH,)), "position": torch.arange(BATCH)}
    options = _on(device, options)
    together = F.sample_logits(logits, **options)
    for row in range(BATCH):
        own = {name: x[row : row + 1] for name, x in options.items()}
        assert F.sample_logits(logits[row : row + 1], **own).item() == together[row].item()


def test_threads_do_not_matter() -> None:
    logits = _some_logits(1, 70001)
    threads = torch.get_num_threads()
    for options in FILTERS:
        several = _sampled(logits, seed=5, log_probs=4, **options)
        torch.set_num_threads(1)
        one = _sampled(logits, seed=5, log_probs=4, **options)
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(several, one, strict=True))


def test_rows_with_gaps(device: str) -> None:
    wide = _some_logits(5, 900, device)
    assert torch.equal(
        F.sample_logits(wide[:, 100:500], seed=1), F.sample_logits(wide[:, 100:500].clone(), seed=1)
    )
    assert torch.equal(
        F.sample_logits(wide.t(), seed=1), F.sample_logits(wide.t().contiguous(), seed=1)
    )


# ---- what survives ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters_keep_what_sorts_keep(options: dict[str, Any], device: str) -> None:
    logits = _some_logits(40, 1500)
    expected, sure = filtered(logits, **options)
    found = _probabilities(logits.to(device), **options).cpu()
    assert sure.float().mean() > 0.2  # the test would say nothing
    torch.testing.assert_close(found[sure].double(), expected[sure], rtol=2e-5, atol=1e-11)
    assert bool((found[sure][expected[sure] == 0] == 0).all())
    assert bool((found[sure][expected[sure] > 1e-9] > 0).all())


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters_keep_what_transformers_keeps(options: dict[str, Any]) -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    makers = {
        "temperature": process.TemperatureLogitsWarper, "top_k": process.TopKLogitsWarper,
        "top_p": process.TopPLogitsWarper, "min_p": process.MinPLogitsWarper,
        "typical_p": process.TypicalLogitsWarper,
    }  # fmt: skip
    logits = _some_logits(40, 1500)
    scores = logits
    for name, maker in makers.items():
        if name in options:
            scores = maker(options[name])(None, scores)
    expected = scores.softmax(1)
    _, sure = filtered(logits, **options)
    found = _probabilities(logits, **options)
    torch.testing.assert_close(found[sure], expected[sure], rtol=1e-4, atol=1e-9)


def test_repetition_penalty_is_that_of_transformers() -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    logits, previous = _some_logits(9, 300), torch.randint(0, 300, (9, 50))
    expected = process.RepetitionPenaltyLogitsProcessor(1.4)(previous, logits).softmax(1)
    found = _probabilities(logits, previous=previous, repetition_penalty=1.4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


def test_penalties_by_a_loop(device: str) -> None:
    logits, previous = _some_logits(6, 90), torch.randint(-1, 95, (6, 70))
    prompt = torch.tensor([0, 10, 70, 3, 100, 69])
    expected = logits.double()
    for row in range(6):
        for token in {t for t in previous[row].tolist() if 0 <= t < 90}:
            z = expected[row, token].item()
            times = previous[row, prompt[row] :].tolist().count(token)
            z = z * 1.2 if z < 0 else z / 1.2
            expected[row, token] = z - 0.3 * times - (0.7 if times else 0.0)
    found = _probabilities(
        logits.to(device), previous=previous.to(device), prompt_lengths=prompt.to(device),
        repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.3,
    )  # fmt: skip
    torch.testing.assert_close(found.cpu().double(), expected.softmax(1), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("packed", [False, True])
def test_bias_and_allowed(packed: bool, device: str) -> None:
    logits, bias = _some_logits(6, 70), torch.randn(6, 70)
    allowed = torch.rand(6, 70) < 0.3
    allowed[:, 69] = True
    expected = (logits.double() + bias).masked_fill(~allowed, -torch.inf).softmax(1)
    mask = allowed
    if packed:
        bits = torch.nn.functional.pad(allowed, (0, 26)).unflatten(1, (3, 32)).long()
        mask = (bits << torch.arange(32)).sum(2)
        mask = torch.where(mask >= 2**31, mask - 2**32, mask).int()
    found = _probabilities(logits.to(device), bias=bias.to(device), allowed=mask.to(device))
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-11)


# ---- the distribution ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.5}, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}], ids=str
)
def test_tokens_are_drawn_with_their_probabilities(options: dict[str, Any], device: str) -> None:
    draws = 100_000
    logits = torch.randn(1, 600) * 2
    expected, sure = filtered(logits, **options)
    if not sure.all():
        expected = _probabilities(logits, **options).double()
    seed = int(torch.randint(2**62, (1,)))
    tokens = F.sample_logits(logits.to(device).expand(draws, -1), seed=seed, **options)
    assert chi_square_passes(tokens.cpu().bincount(minlength=600), expected[0])


def test_positions_draw_other_numbers(device: str) -> None:
    logits = torch.randn(1, 50, device=device).expand(100_000, -1)
    draws = torch.arange(100_000, device=device)
    tokens = F.sample_logits(logits, seed=torch.full_like(draws, 3), position=draws)
    expected = logits[0].double().softmax(0).cpu()
    assert chi_square_passes(tokens.cpu().bincount(minlength=50), expected)
    assert torch.equal(tokens[77:78], F.sample_logits(logits[:1], seed=3, position=77))


def test_without_a_seed_torchs_generator_decides() -> None:
    logits = torch.randn(8, 1000)
    torch.manual_seed(4)
    first = F.sample_logits(logits)
    assert not torch.equal(first, F.sample_logits(logits))
    torch.manual_seed(4)
    assert torch.equal(first, F.sample_logits(logits))


@pytest.mark.parametrize("kind", DTYPES, ids=str)
def test_log_probs_are_the_models_own(kind: torch.dtype, device: str) -> None:
    logits = (torch.randn(9, 5000, device=device) * 3).to(kind)
    found = F.sample_logits(logits, temperature=0.3, top_k=4, log_probs=7)
    exact = logits.float().double().log_softmax(1)
    torch.testing.assert_close(
        found.log_probs.double(), exact.gather(1, found.tokens[:, None])[:, 0], rtol=1e-6, atol=1e-6
    )
    order = logits.float().sort(dim=1, descending=True, stable=True).indices[:, :7]
    assert torch.equal(found.top_tokens, order)
    torch.testing.assert_close(
        found.top_log_probs.double(), exact.gather(1, order), rtol=1e-6, atol=1e-6
    )
    assert found.probabilities is None


# ---- the ends -----------------------------------------------------------------------------------

BACKENDS = ("auto", "reference")


@pytest.mark.parametrize("backend", BACKENDS)
def test_defined_results(backend: str, device: str) -> None:
    nan, inf = torch.nan, torch.inf
    rows = torch.tensor(
        [[nan, 1.0, 0.0], [0.0, nan, nan], [inf, 0.0, inf], [-inf, -inf, 2.0], [5.0, 5.0, -inf]],
        device=device,
    )
    seeds = {"seed": 9, "backend": backend}
    for options in FILTERS:
        tokens = F.sample_logits(rows, **seeds, **options).tolist()
        assert tokens[:2] == [0, 1]
        assert tokens[2] in (0, 2)
        assert tokens[3] == 2
        assert tokens[4] in (0, 1)
    greedy = F.sample_logits(rows, temperature=0, log_probs=2, probabilities=True, **seeds)
    assert greedy.tokens.tolist() == [0, 1, 0, 2, 0]
    assert greedy.log_probs.isnan().tolist() == [True, True, False, False, False]
    assert greedy.top_tokens.tolist() == [[-1, -1], [-1, -1], [0, 2], [2, 0], [0, 1]]
    assert greedy.probabilities[2:].tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    hidden = F.sample_logits(rows[:1], allowed=torch.tensor([False, True, True], device=device))
    assert hidden.item() in (1, 2)  # NaN that is not allowed is not there


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_logits_are_kept_together(backend: str, device: str) -> None:
    rows = torch.tensor([[1.0, 2.0, 1.0, 2.0, 0.0]], device=device)
    for options, kept in (
        ({"top_k": 1}, 2), ({"top_k": 2}, 2), ({"top_k": 3}, 4), ({"top_p": 0.0}, 2),
        ({"top_p": 0.99}, 5), ({"top_p": 1.0}, 5), ({"min_p": 1.0}, 2), ({"min_p": 0.0}, 5),
        ({"top_k": 99}, 5), ({"top_k": 0}, 5), ({"typical_p": 1.0}, 5),
    ):  # fmt: skip
        found = _probabilities(rows, backend=backend, **options)
        assert (found > 0).sum().item() == kept, options


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batch_and_one_token(backend: str, device: str) -> None:
    none = F.sample_logits(
        torch.empty(0, 9, device=device), log_probs=2, probabilities=True, backend=backend
    )
    assert [tuple(x.shape) for x in none] == [(0,), (0,), (0, 2), (0, 2), (0, 9)]
    one = F.sample_logits(
        torch.randn(3, 1, device=device), top_k=5, top_p=0.1, typical_p=0.1, log_probs=1,
        backend=backend,
    )  # fmt: skip
    assert one.tokens.tolist() == [0, 0, 0]
    assert one.log_probs.tolist() == one.top_log_probs[:, 0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_allowed_is_an_error_on_the_cpu(backend: str) -> None:
    logits = torch.randn(3, 40)
    allowed = torch.ones(3, 40, dtype=torch.bool)
    allowed[1] = False
    with pytest.raises(ValueError, match="sample_logits: row 1 has no token that may be drawn"):
        F.sample_logits(logits, allowed=allowed, backend=backend)
    with pytest.raises(ValueError, match="row 0 has no token"):
        F.sample_logits(torch.full((1, 4), -torch.inf), temperature=0, backend=backend)


@pytest.mark.cuda
def test_a_graph_draws_what_its_memory_says() -> None:
    """Logits, parameters, seeds and positions may change between replays."""
    logits = _some_logits(BATCH, 5000, "cuda")
    options = _on("cuda", _parameters(BATCH))
    options |= {"seed": torch.arange(BATCH, device="cuda"), "log_probs": 3}
    options |= {"position": torch.zeros(BATCH, dtype=torch.long, device="cuda")}
    F.sample_logits(logits, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found: Any = F.sample_logits(logits, **options)
    for _ in range(5):
        logits.copy_(torch.randn_like(logits) * 3)
        options["position"] += 1
        options["top_p"].uniform_()
        graph.replay()
        expected: Any = F.sample_logits(logits, **options)
        assert all(torch.equal(a, b) for a, b in zip(found[:4], expected[:4], strict=True))


@pytest.mark.cuda
def test_a_thousand_runs_have_the_same_bits() -> None:
    logits = _some_logits(3, 40_000, "cuda")
    options: dict[str, Any] = {"top_k": 500, "top_p": 0.9, "typical_p": 0.9, "seed": 1}
    expected = _sampled(logits, log_probs=5, **options)
    for _ in range(1000):
        found = _sampled(logits, log_probs=5, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.cuda
def test_parameters_that_only_the_device_knows() -> None:
    """Numbers that the CPU refuses have the formula's results."""
    logits = _some_logits(4, 3000, "cuda")
    strange = torch.tensor([torch.nan, -1.0, 2.0, torch.inf], device="cuda")
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p"):
        one, other = (
            F.sample_logits(logits, seed=5, backend=backend, **{name: strange})
            for backend in ("auto", "reference")
        )
        assert torch.equal(one, other), name


# ---- errors and tools ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1, expected a finite number, 0 or above"),
        ({"temperature": torch.nan}, "temperature is nan, expected a finite number, 0 or above"),
        ({"top_k": -1}, "top_k is -1, expected a finite number, 0 or above"),
        ({"top_p": 1.5}, "top_p is 1.5, expected a number from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0, expected a finite number above 0"),
        ({"presence_penalty": torch.inf}, "presence_penalty is inf, expected a finite number"),
        ({"top_p": torch.tensor([0.5, 2.0])}, "top_p is 2 in row 1, expected a number from 0 to 1"),
        ({"min_p": torch.ones(3)}, r"min_p has shape \(3,\), expected \(2,\)"),
        ({"seed": -1}, "seed is -1, expected 0 to"),
        ({"seed": torch.ones(2)}, "seed is float32, expected int32 or int64"),
        ({"bias": torch.ones(5)}, r"bias has shape \(1, 5\), expected \(1, 4\)"),
        ({"bias": torch.ones(4).double()}, "bias is float64, expected float32"),
        ({"allowed": torch.ones(4)}, "allowed is float32, expected bool or int32"),
        ({"allowed": torch.ones(2, 4).int()}, r"allowed has shape \(2, 4\), expected \(2, 1\)"),
        ({"previous": torch.ones(4).long()}, "previous has 1 dimensions, expected 2"),
        ({"log_probs": 5}, "top_tokens has 5 columns, expected at most 4"),
        ({"log_probs": -1}, "log_probs is -1, expected at least 0"),
        ({"position": 1.5}, "position is 1.5, expected an int"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"sample_logits: {message}"):
        F.sample_logits(torch.randn(2, 4), **options)


def test_logits_are_refused_by_name() -> None:
    with pytest.raises(ArgumentTypeError, match="logits is int64, expected a floating-point dtype"):
        F.sample_logits(torch.ones(2, 4).long())
    with pytest.raises(ArgumentValueError, match="expected \\(batch, vocabulary\\)"):
        F.sample_logits(torch.randn(4))
    with pytest.raises(ArgumentValueError, match="logits has 0 columns, expected 1 to 1048576"):
        F.sample_logits(torch.randn(2, 0))


def test_opcheck_and_compile() -> None:
    logits, numbers = torch.randn(3, 70), torch.arange(3)
    parameters = torch.tensor([[1.0, 5.0, 0.9, 0.0, 1.0, 1.0, 0.0, 0.0]])
    torch.library.opcheck(
        SAMPLE_LOGITS, (logits, parameters, numbers, numbers, None, None, None, None, 2, True, 31)
    )

    def run(x: Tensor) -> Tensor:
        return F.sample_logits(x * 2, top_k=5, seed=3)

    assert torch.equal(torch.compile(run, fullgraph=True)(logits), run(logits))
