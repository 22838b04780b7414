# SPDX-License-Identifier: MIT
"""Steps that are recorded and replayed give the tokens of steps that are not. On a CPU the function
runs again over the same tensors, in place of a graph."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kernels.decode import Batch, Engine, PagedCache, Parameters, _static

from .conftest import VOCABULARY


@pytest.fixture(autouse=True)
def _pad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added on a CPU too."""
    monkeypatch.setattr(_static.StaticSteps, "padded_on", ("cpu", "cuda"))


class Chain:
    """A model whose logits are a row of a table, chosen by all tokens of a sequence and their
    order. All is exact, so that tokens do not depend on the number of rows."""

    def __init__(self, device: str) -> None:
        self.table = 3 * torch.randn(VOCABULARY, VOCABULARY, device=device)
        self.calls = 0

    def read(self, cache: PagedCache) -> list[Tensor]:
        return [self.table]

    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        self.calls += 1
        size = cache.page_size
        places = torch.arange(batch.block_tables.shape[1] * size, device=self.table.device)
        tables = batch.block_tables.long()[:, places // size]
        slots = torch.where(tables < 0, cache.num_pages * size, tables * size + places % size)
        kept = torch.cat([cache.keys.flatten(), self.table.new_zeros(1)])
        new = batch.slots
        if not len(new):
            new = slots.gather(1, batch.lengths.long()[:, None])[:, 0]
        kept.index_copy_(0, new, batch.tokens.float())
        cache.keys.copy_(kept[:-1].view_as(cache.keys))
        ends = batch.lengths + batch.cu_seqlens.diff()
        weights = torch.where(places < ends[:, None], places + 1, 0)
        state = (kept[slots].nan_to_num(0).long() * weights).sum(1) % VOCABULARY
        if len(batch.outputs) == len(state):
            return self.table[state]
        owners = torch.searchsorted(batch.cu_seqlens[1:].long(), batch.outputs, right=True)
        return self.table[state[owners]]


def served(model: Chain, graphs: bool | str, **options: Any) -> Engine:
    sizes = {"num_pages": 60, "max_sequences": 6, **options.pop("sizes", {})}
    cache = PagedCache(1, head_dim=1, num_heads=1, device=model.table.device, **sizes)
    cache.keys.fill_(float("nan"))
    return Engine(model, cache, **{"max_tokens": 24, "graphs": graphs, **options})


def asked(count: int, longest: int = 40) -> list[tuple[list[int], Parameters]]:
    """Prompts with parameters of all kinds."""
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.9, "top_k": 7}, {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.7, "min_p": 0.05}, {"presence_penalty": 0.5, "temperature": 1.0},
        {"bias": ((random.randrange(VOCABULARY), 3.0),), "temperature": 0.8}, {"log_probs": 1},
    ]  # fmt: skip
    return [
        (
            torch.randint(VOCABULARY, (random.randint(1, longest),)).tolist(),
            Parameters(
                max_new_tokens=random.randint(1, 30), seed=random.randrange(1000),
                stop_tokens=(random.randrange(VOCABULARY),), **random.choice(kinds),
            ),
        )
        for _ in range(count)
    ]  # fmt: skip


def tokens_of(engine: Engine, requests: list[tuple[list[int], Parameters]]) -> list[list[int]]:
    """Submits requests while others run; returns the tokens of each."""
    numbers = []
    for prompt, parameters in requests:
        numbers.append(engine.submit(prompt, parameters))
        for _ in range(random.randrange(4)):
            engine.step()
            engine.cache.check()
    found = [engine.result(number).tokens for number in numbers]
    engine.cache.check()
    assert engine.cache.available_pages == engine.cache.num_pages
    return found


def shapes(engine: Engine) -> list[_static.Shape]:
    assert engine._ahead is not None
    return list(engine._ahead._steps._steps)


@pytest.mark.parametrize("pages", [60, 9], ids=["room", "pages are given up"])
def test_tokens_of_requests_that_join_and_leave(pages: int, device: str) -> None:
    model, requests = Chain(device), asked(12)
    sizes = {"num_pages": pages}
    replayed = served(model, True, sizes=sizes)
    assert tokens_of(replayed, requests) == tokens_of(served(model, False, sizes=sizes), requests)
    assert len({shape.rows for shape in shapes(replayed)}) > 1


def test_log_probabilities_beside_requests_without(device: str) -> None:
    model, found = Chain(device), []
    for graphs in (True, False):
        engine = served(model, graphs)
        engine.submit([3, 4], Parameters(max_new_tokens=12))
        told = engine.submit([1, 2], Parameters(max_new_tokens=9, log_probs=2))
        found.append(list(engine.stream(told)))
    assert found[0] == found[1]
    assert all(piece.log_probs.likeliest[0][0] == piece.token for piece in found[0])


def test_one_engine_beside_another(device: str) -> None:
    model, requests = Chain(device), asked(8)
    expected = tokens_of(served(model, False), requests)
    found: dict[int, list[list[int]]] = {}

    def run(number: int) -> None:
        found[number] = tokens_of(served(model, True), requests)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: expected, 1: expected}


def test_long_sequences_are_recorded_again(device: str) -> None:
    model = Chain(device)
    prompt = torch.randint(VOCABULARY, (1019,)).tolist()
    sizes = {"num_pages": 140, "max_sequences": 2}
    requests = [(prompt, Parameters(max_new_tokens=20)), (prompt[:9], Parameters(20))]
    engine = served(model, True, sizes=sizes, max_tokens=512)
    assert tokens_of(engine, requests) == tokens_of(
        served(model, False, sizes=sizes, max_tokens=512), requests
    )
    assert {shape.pages for shape in shapes(engine)} == {64, 128}


def test_the_host_may_end_what_runs_ahead(device: str) -> None:
    """Requests that are cancelled, and stop strings, which the device does not know."""
    model = Chain(device)

    def letters(tokens: list[int]) -> str:
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    def run(graphs: bool) -> list[Any]:
        engine = served(model, graphs, detokenize=letters)
        numbers = [
            engine.submit([5 + i], Parameters(max_new_tokens=40, stop=("e", "qu"), seed=i))
            for i in range(5)
        ]
        for _ in range(4):
            engine.step()
        gone = engine.cancel(numbers[2])
        late = engine.submit([3, 4], Parameters(max_new_tokens=12))
        found = [gone, *(engine.result(n) for n in [*numbers[:2], *numbers[3:], late])]
        assert engine.cache.available_pages == engine.cache.num_pages
        engine.cache.check()
        return found

    assert run(True) == run(False)


def test_a_step_runs_ahead(device: str) -> None:
    model = Chain(device)
    engine = served(model, True)
    engine.submit([1, 2], Parameters(max_new_tokens=9))
    engine.step()
    engine.step()
    before = model.calls
    assert engine._ahead is not None
    assert engine._ahead._started is not None
    engine.step()
    assert model.calls - before <= 1


def test_what_a_model_reads_may_change(device: str) -> None:
    model = Chain(device)
    engine = served(model, True)
    engine.generate([[1, 2]], Parameters(max_new_tokens=9))
    model.table = 3 * torch.randn_like(model.table)
    plain = served(model, False).generate([[7, 2]], Parameters(max_new_tokens=9))
    assert engine.generate([[7, 2]], Parameters(max_new_tokens=9)) == plain


@pytest.mark.filterwarnings("error")
def test_a_step_that_cannot_be_recorded_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def record(self, run: Any) -> None:
            raise RuntimeError("the host asks\nat length")

    monkeypatch.setattr(_static, "Rerun", Broken)
    model, requests = Chain("cpu"), asked(4)
    requests = [(prompt, Parameters(max_new_tokens=9)) for prompt, _ in requests]
    expected = tokens_of(served(model, False), requests)
    engine = served(model, True)
    with pytest.warns(RuntimeWarning, match="not replayed as graphs: RuntimeError: the host asks$"):
        found = tokens_of(engine, requests)
    assert found == expected
    assert tokens_of(engine, requests) == expected


@pytest.mark.cuda
def test_steps_that_wait_for_the_device_are_not_recorded() -> None:
    class Waits(Chain):
        def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
            assert int(batch.lengths.max()) >= 0
            return super().__call__(batch, cache)

    model, requests = Waits("cuda"), [([1, 2], Parameters(max_new_tokens=9))]
    state = torch.cuda.get_rng_state()
    with pytest.warns(RuntimeWarning, match="not replayed as graphs"):
        found = tokens_of(served(model, "auto"), requests)
    assert found == tokens_of(served(model, False), requests)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.randn(3, device="cuda")  # the generator still works


def test_only_recordable_models_are_recorded() -> None:
    model = Chain("cpu")
    assert served(model, "auto")._ahead is None
    assert served(model, False)._ahead is None
    cache = PagedCache(1, 8, 1, 1, dtype=torch.float64)
    assert Engine(model, cache, graphs=True)._ahead is None
    assert Engine(lambda *_: torch.zeros(1, 2), PagedCache(1, 8, 1, 1), graphs=True)._ahead is None
    with pytest.raises(ValueError, match="Engine: graphs is 'yes', expected True, False or 'auto'"):
        served(model, "yes")
