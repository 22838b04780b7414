# SPDX-License-Identifier: MIT
"""Situations of a run: modes, dtypes, shapes, masks, caches and threads."""

from __future__ import annotations

import contextlib
import copy
import inspect
import statistics
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .compare import (
    GRADIENT,
    Results,
    assert_as_exact,
    assert_close,
    cast,
    forward,
    loss_of,
    reference,
    train,
)
from .families import TOKENS, Inputs
from .subject import Pair, Subject, is_causal, is_pretrained, reads_text, situation, writes_text


def by_the_rule(
    pair: Pair, run: Any, inputs: Inputs | None = None, dtype: torch.dtype | None = None
) -> None:
    inputs = pair.inputs if inputs is None else inputs
    ours, stock = pair.in_both(lambda model: run(model, inputs))
    assert_as_exact(ours, stock, reference(pair.stock, run, inputs), dtype)


@situation()
def inference(subject: Subject) -> None:
    pair = subject.pair()
    missing = subject.sites_missing()
    assert not missing, f"sites (found, expected): {missing}"
    by_the_rule(pair, forward)


@situation()
def training(subject: Subject) -> None:
    """Training without dropout."""
    pair = subject.pair()
    for model in pair.both:
        model.train()
    by_the_rule(pair, train)


@situation()
def other_shapes(subject: Subject) -> None:
    """Shapes that the recorded run did not have: one row, more rows, and few tokens."""
    pair = subject.pair()
    for batch, tokens in ((1, 9), (3, 57), (2, TOKENS)):
        by_the_rule(pair, forward, subject.inputs(batch, tokens, seed=batch))


@situation(lambda family: family.dropout, "has no dropout")
def dropout(subject: Subject) -> None:
    """The masks follow from the seed, and the losses are spread as stock's are."""
    pair = subject.pair(dropout=0.1)
    for model in pair.both:
        model.train()

    def loss(model: nn.Module, seed: int) -> float:
        torch.manual_seed(seed)
        with torch.no_grad():
            return float(loss_of(model(**pair.inputs)))

    assert loss(pair.ours, 1) == loss(pair.ours, 1)
    seeds = range(24)
    ours, stock = pair.in_both(lambda model: [loss(model, seed) for seed in seeds])
    still = loss(pair.stock.eval(), 0)
    assert len(set(ours)) > 1
    spread = statistics.stdev(stock)
    assert spread / 2.5 < statistics.stdev(ours) < spread * 2.5
    between = abs(statistics.mean(ours) - statistics.mean(stock))
    assert between < 5 * spread * (2 / len(seeds)) ** 0.5, f"mean of losses, {still} without"


def _checkpointed(subject: Subject, reentrant: bool) -> None:
    """Gradients with dropout do not depend on checkpointing, and without it are stock's."""
    rate = 0.1 if subject.family.dropout else 0.0
    for dropout in {rate, 0.0}:
        pair = subject.pair(dropout)
        plain = copy.deepcopy(pair.ours)
        for model in (*pair.both, plain):
            model.train()
        exact = reference(pair.stock, train, pair.inputs)
        for model in pair.both:
            _enable_checkpointing(model, reentrant)
        torch.manual_seed(7)
        ours = train(pair.ours, pair.inputs)
        torch.manual_seed(7)
        assert_close(_without_caches(ours), _without_caches(train(plain, pair.inputs)))
        if not dropout:
            stock = train(pair.stock, pair.inputs)
            assert_as_exact(*map(_without_caches, (ours, stock, exact)))


def _without_caches(results: Results) -> Results:
    """A checkpointed model leaves its cache out of what it returns."""
    kept = ("loss", "logits", "y", GRADIENT)
    return {name: x for name, x in results.items() if name.startswith(kept)}


def _enable_checkpointing(model: nn.Module, reentrant: bool) -> None:
    options = {"use_reentrant": reentrant}
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(options)
        model.enable_input_require_grads()  # reentrant checkpoints need an input with a gradient
    elif hasattr(model, "set_grad_checkpointing"):
        for block in _blocks(model):
            _checkpoint(block, options)
    else:
        for layer in model.layers:
            _checkpoint(layer, options)


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__.endswith("Block")]


def _checkpoint(block: nn.Module, options: dict[str, bool]) -> None:
    stock = block.forward
    block.forward = lambda *inputs, **named: checkpoint(partial(stock, **named), *inputs, **options)


@situation()
def checkpointing(subject: Subject) -> None:
    _checkpointed(subject, reentrant=False)


@situation()
def checkpointing_reentrant(subject: Subject) -> None:
    _checkpointed(subject, reentrant=True)


def padded(family_inputs: Inputs, left: bool) -> Inputs:
    """Inputs whose second row is shorter by nine tokens."""
    ids = family_inputs["input_ids"].clone()
    mask = torch.ones_like(ids)
    ends = slice(0, 9) if left else slice(-9, None)
    mask[1, ends], ids[1, ends] = 0, 0
    labels = family_inputs["labels"].clone()
    if labels.shape == ids.shape:
        labels[1, ends] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@situation(lambda family: reads_text(family) or family.kind == "encoder", "takes no mask")
def padded_training(subject: Subject) -> None:
    pair = subject.pair()
    for model in pair.both:
        model.train()
    if subject.family.kind == "encoder":
        mask = torch.zeros(pair.inputs["src"].shape[:2], dtype=torch.bool)
        mask[1, -9:] = True
        by_the_rule(pair, train, {**pair.inputs, "src_key_padding_mask": mask})
        return
    for left in (False, True):
        by_the_rule(pair, train, padded(pair.inputs, left))


@situation(lambda family: is_causal(family) and family.name != "mamba", "takes no positions")
def packed_sequences(subject: Subject) -> None:
    """Several sequences in one row, which positions that begin again tell apart."""
    if not subject.accepts("position_ids"):
        pytest.skip("takes no positions")
    pair = subject.pair()
    for model in pair.both:
        model.train()
    parts = [torch.arange(length) for length in (17, 11, 12)]
    inputs = {**subject.inputs(batch=1), "position_ids": torch.cat(parts).unsqueeze(0)}
    by_the_rule(pair, train, inputs)


@situation(writes_text, "writes no text")
def generation(subject: Subject) -> None:
    """Greedy tokens with a cache, from prompts that are padded on the left."""
    pair = subject.pair()
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    inputs = {name: x for name, x in pair.inputs.items() if name != "labels"}
    if subject.family.kind != "speech":
        inputs = padded(pair.inputs, left=True)
        del inputs["labels"]
    ours, stock = pair.in_both(lambda model: model.generate(**inputs, **options))
    assert torch.equal(ours, stock)
    if subject.family.kind == "causal":
        one = {"input_ids": inputs["input_ids"][:1]}
        beams = {**options, "num_beams": 2}
        ours, stock = pair.in_both(lambda model: model.generate(**one, **beams))
        assert torch.equal(ours, stock)


@situation(lambda family: is_causal(family) and family.name != "mamba", "has no cache of keys")
def a_cache_by_hand(subject: Subject) -> None:
    """A prompt in two parts, the second of which reads the first one's keys and values."""
    pair = subject.pair()
    ids = pair.inputs["input_ids"]

    def logits(model: nn.Module, ids: Tensor) -> Results:
        with torch.no_grad():
            first = model(input_ids=ids[:, :-7], use_cache=True)
            cache = first.past_key_values
            second = model(input_ids=ids[:, -7:-1], past_key_values=cache, use_cache=True)
            third = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
        return {str(i): out.logits for i, out in enumerate((first, second, third))}

    ours, stock = pair.in_both(lambda model: logits(model, ids))
    assert_as_exact(ours, stock, reference(pair.stock, lambda m, i: logits(m, **i), {"ids": ids}))


@situation()
def autocast(subject: Subject) -> None:
    pair = subject.pair()
    for model in pair.both:
        model.train()

    def run(model: nn.Module) -> Results:
        with torch.autocast("cpu", torch.bfloat16):
            return train(model, pair.inputs)

    ours, stock = pair.in_both(run)
    assert_as_exact(ours, stock, reference(pair.stock, train, pair.inputs), torch.bfloat16)


@situation()
def bfloat16(subject: Subject) -> None:
    """A model that was fused in float32 and is moved then."""
    pair = subject.pair()
    for model in pair.both:
        model.train().bfloat16()
    by_the_rule(pair, train, cast(pair.inputs, torch.bfloat16), torch.bfloat16)


@situation()
def inference_mode_then_training(subject: Subject) -> None:
    pair = subject.pair()
    with torch.inference_mode():
        for model in pair.both:
            model(**pair.inputs)
    for model in pair.both:
        model.train()
    by_the_rule(pair, train)


@situation(is_pretrained, "is not of transformers")
def hidden_states(subject: Subject) -> None:
    by_the_rule(subject.pair(), lambda m, i: forward(m, {**i, "output_hidden_states": True}))


@situation(is_pretrained, "is not of transformers")
def attentions(subject: Subject) -> None:
    """Attention's weights, which only the model's eager code gives."""
    if subject.family.name == "mamba":
        pytest.skip("has no attention")

    def eager(model: nn.Module) -> None:
        model.set_attn_implementation("eager")

    def run(model: nn.Module, inputs: Inputs) -> Results:
        return forward(model, {**inputs, "output_attentions": True})

    pair = subject.pair()
    for model in pair.both:
        eager(model)
    if not any("attentions" in name for name in run(pair.stock, pair.inputs)):
        pytest.skip("stock gives no weights of attention in this version")
    by_the_rule(pair, run)
    by_the_rule(subject.pair(prepare=eager), run)


@situation()
def after_an_exception(subject: Subject) -> None:
    """A hook fails in the middle of a run; the next run finds nothing of the first one."""
    pair = subject.pair()
    names = [name for name, module in pair.ours.named_modules() if not [*module.children()]]

    def fail(*_arguments: Any) -> None:
        raise InterruptedError

    other = subject.inputs(seed=5)
    for name in names[:: max(1, len(names) // 6)]:
        handle = pair.ours.get_submodule(name).register_forward_pre_hook(fail)
        with contextlib.suppress(InterruptedError):
            pair.ours(**other)
        handle.remove()
    by_the_rule(pair, forward)


@situation()
def calls_by_name(subject: Subject) -> None:
    """Modules of one input, each called with that input by its name."""
    pair = subject.pair()
    given: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple], None]:
        def hook(_module: nn.Module, args: tuple) -> None:
            if len(args) == 1 and isinstance(args[0], Tensor):
                given[name] = args[0]

        return hook

    handles = [module.register_forward_pre_hook(keep(name))
               for name, module in pair.stock.named_modules()]  # fmt: skip
    forward(pair.stock, pair.inputs)
    for handle in handles:
        handle.remove()
    for name, x in given.items():
        theirs, mine = pair.stock.get_submodule(name), pair.ours.get_submodule(name)
        argument = next(iter(inspect.signature(theirs.forward).parameters))
        try:
            wanted = forward(theirs, {argument: x})
        except (TypeError, ValueError):
            continue  # stock needs more than that
        try:
            found = forward(mine, {argument: x})
        except TypeError as error:
            raise AssertionError(f"{name} called with {argument}=: {error}") from None
        assert_close(found, wanted)


@situation()
def threads(subject: Subject) -> None:
    """One model in two threads, each with its own inputs."""
    pair = subject.pair()
    given = [subject.inputs(seed=seed) for seed in (3, 4)]
    alone = [forward(pair.ours, inputs) for inputs in given]
    found: list[list[Results]] = [[], []]

    def work(which: int) -> None:
        for _ in range(8):
            found[which].append(forward(pair.ours, given[which]))

    workers = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for which in range(2):
        assert len(found[which]) == 8
        for results in found[which]:
            assert_close(results, alone[which], 1e-6)
