# SPDX-License-Identifier: MIT
"""A stock model beside its fused copy, and the table of situations that both are put in."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

import transformer_kernels as tfk

from .families import BATCH, LEAST, TOKENS, Family, Inputs

Change = Callable[[nn.Module], Any]


@dataclass
class Pair:
    stock: nn.Module
    ours: nn.Module  # a fused copy of stock
    inputs: Inputs
    plan: Any

    @property
    def both(self) -> tuple[nn.Module, nn.Module]:
        return self.ours, self.stock

    def in_both(self, act: Callable[[nn.Module], Any]) -> tuple[Any, Any]:
        """Results of ``act`` for ours and for stock."""
        return act(self.ours), act(self.stock)


@dataclass
class Subject:
    """One family of models, whose pairs are built as a situation asks."""

    family: Family
    # The options of fuse. Without timing, sites that are too small here to pay are put in too.
    options: Mapping[str, Any] = field(default_factory=lambda: {"measure": False})
    places: int | None = None  # how many modules are changed one at a time; None is all of them
    seed: int = 0  # of inputs
    sites: dict[str, int] = field(default_factory=dict)  # of the last pair, by pattern

    def pair(self, dropout: float = 0.0, prepare: Change | None = None) -> Pair:
        """``prepare`` changes the model before a copy of it is fused."""
        stock = self.family.build(dropout)
        if prepare is not None:
            prepare(stock)
        inputs = self.inputs()
        ours = copy.deepcopy(stock)
        return Pair(stock, ours, inputs, self.fuse(ours, inputs))

    def inputs(self, batch: int = BATCH, tokens: int = TOKENS, seed: int = 1) -> Inputs:
        return self.family.inputs(batch, tokens, seed + 1000 * self.seed)

    @property
    def attempts(self) -> int:
        """How often a comparison may fail: a sum in another order may land on the other side of a
        kink."""
        return 3 if self.family.kinks else 1

    def fuse(self, model: nn.Module, inputs: Inputs) -> Any:
        plan = tfk.fuse(model, inputs, **self.options)
        self.sites = plan.counts()
        return plan

    def sites_missing(self) -> dict[str, tuple[int, int]]:
        """The patterns found at fewer sites than the family has: (found, expected). What one
        version of a library writes out, another may call."""
        least = LEAST[self.family.name]
        found = {name: self.sites.get(name, 0) for name in least}
        if "eager_attention" in found:
            found["eager_attention"] += self.sites.get("attention", 0)
        return {name: (found[name], n) for name, n in least.items() if found[name] < n}

    def accepts(self, argument: str) -> bool:
        return argument in inspect.signature(self.family.build().forward).parameters


@dataclass(frozen=True)
class Situation:
    name: str
    run: Callable[[Subject], None]
    applies: Callable[[Family], bool]
    why_not: str

    def __str__(self) -> str:
        return self.name


SITUATIONS: dict[str, Situation] = {}


def anything(_family: Family) -> bool:
    return True


def situation(applies: Callable[[Family], bool] = anything, why_not: str = "") -> Callable:
    """Puts a function of a subject into the table, under its own name."""

    def put(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = run.__name__.replace("_", " ")
        SITUATIONS[name] = Situation(name, run, applies, why_not)
        return run

    return put


# ---- what a family has --------------------------------------------------------------------------


def is_pretrained(family: Family) -> bool:
    """Whether the model is one of transformers."""
    return family.library == "transformers"


def writes_text(family: Family) -> bool:
    return family.kind in ("causal", "translation", "speech")


def reads_text(family: Family) -> bool:
    return family.kind in ("causal", "masked", "translation")


def is_causal(family: Family) -> bool:
    return family.kind == "causal"
