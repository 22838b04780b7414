# SPDX-License-Identifier: MIT
"""Trains graph networks with PyTorch and with our kernels on three tasks.

Zachary's karate club, with two members' sides known: which side does each member take? A stochastic
block model, with a tenth of the nodes known: which block is a node in? And many small graphs: do
the edges of a graph stay inside its blocks, or run between them?
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import networkx
import torch
from torch import Tensor

from transformer_kernels.bench import models, training
from transformer_kernels.bench.options import pick_device
from transformer_kernels.functional import Graph
from transformer_kernels.models import GraphNetwork, GraphNetworkConfig

UNKNOWN = -100  # a target that is ignored
GOAL = 0.95


class Batch(NamedTuple):
    x: Tensor
    graph: Graph
    targets: Tensor
    offsets: Tensor | None = None  # for several graphs

    def to(self, device: torch.device) -> Batch:
        return Batch(*(None if part is None else part.to(device) for part in self))


def loss_of(model: GraphNetwork, batch: Batch) -> Tensor:
    return model(batch.x, batch.graph, batch.targets, offsets=batch.offsets)


def accuracy_of(model: GraphNetwork, batch: Batch) -> float:
    right = model(batch.x, batch.graph, offsets=batch.offsets).argmax(-1) == batch.targets
    return float(right[batch.targets != UNKNOWN].double().mean())


def both_ways(edges: Tensor) -> Tensor:
    return torch.cat([edges, edges.flip(0)], 1)


# ---- Zachary's club -----------------------------------------------------------------------------


def club(quick: bool, device: torch.device) -> models.Task:
    """Each node's features are the probabilities of where a walk of two steps from it ends."""
    club = networkx.karate_club_graph()
    edges = both_ways(torch.tensor(list(club.edges)).T)
    sides = torch.tensor([int(club.nodes[i]["club"] != "Mr. Hi") for i in club.nodes])
    members = len(sides)
    step = torch.eye(members)  # a step may stay in place
    step[edges[1], edges[0]] = 1
    step /= step.sum(1, keepdim=True)
    x = step @ step
    heads = torch.tensor([0, members - 1])  # the instructor and the president
    known = torch.full_like(sides, UNKNOWN).index_copy(0, heads, sides[heads])
    others = sides.index_fill(0, heads, UNKNOWN)
    graph = Graph.from_edges(edges, members)
    config = GraphNetworkConfig(in_features=members, num_classes=2, dim=16, num_layers=2)
    return models.Task(
        model="GraphNetwork, mean, 2 layers, width 16",
        data="Zachary's club",
        build=functools.partial(GraphNetwork, config),
        batches=lambda: itertools.repeat(Batch(x, graph, known).to(device)),
        loss_of=loss_of,
        accuracy_of=functools.partial(accuracy_of, batch=Batch(x, graph, others).to(device)),
        recipe=training.Recipe(4 if quick else 60, 1e-2, weight_decay=1.0, warm_up=1, decays=True),
        goal=None if quick else GOAL,
    )


# ---- a stochastic block model -------------------------------------------------------------------


def block_model(blocks: Tensor, inside: float, across: float, generator: torch.Generator) -> Tensor:
    """Edges (2, E) in both directions, between nodes of the same block and of different blocks."""
    chance = torch.where(blocks.unsqueeze(1) == blocks, inside, across).triu(1)
    return both_ways((torch.rand(chance.shape, generator=generator) < chance).nonzero().T)


def hide(blocks: Tensor, classes: int, shown: Tensor) -> Tensor:
    """The known blocks of the nodes, one-hot (N, classes); 0 where a block is not shown."""
    return torch.nn.functional.one_hot(blocks, classes) * shown.unsqueeze(1).float()


def half_of(known: Tensor, generator: torch.Generator) -> Tensor:
    return known & (torch.rand(known.shape, generator=generator) < 0.5)


def blocks_of_nodes(quick: bool, device: torch.device) -> models.Task:
    """Each training step shows a random half of the known blocks, and asks for the others."""
    nodes, classes = (60, 3) if quick else (1000, 4)
    generator = torch.Generator().manual_seed(7)
    blocks = torch.arange(nodes) % classes
    degree = nodes / classes
    graph = Graph.from_edges(block_model(blocks, 14 / degree, 1 / degree, generator), nodes)
    known = torch.rand(nodes, generator=generator) < 0.1
    config = GraphNetworkConfig(
        in_features=classes, num_classes=classes, dim=48, num_layers=3, num_heads=4,
        messages="attention",
    )  # fmt: skip

    def batches() -> Iterator[Batch]:
        draws = torch.Generator().manual_seed(1)
        while True:
            shown = half_of(known, draws)
            targets = blocks.masked_fill(shown | ~known, UNKNOWN)
            yield Batch(hide(blocks, classes, shown), graph, targets).to(device)

    held = Batch(hide(blocks, classes, known), graph, blocks.masked_fill(known, UNKNOWN))
    return models.Task(
        model="GraphNetwork, attention, 3 layers, width 48",
        data=f"block model, {nodes} nodes, {graph.num_edges} edges",
        build=functools.partial(GraphNetwork, config),
        batches=batches,
        loss_of=loss_of,
        accuracy_of=functools.partial(accuracy_of, batch=held.to(device)),
        recipe=training.Recipe(4 if quick else 150, 3e-3, decays=True),
        goal=None if quick else GOAL,
    )


# ---- many block models --------------------------------------------------------------------------


def small_graphs(count: int, generator: torch.Generator) -> Batch:
    """Graphs of two blocks of 10 to 19 nodes; a noisy number tells the block. Edges stay inside in
    class 1."""
    edges, rows, sizes = [], [], [0]
    targets = torch.arange(count) % 2
    for target in targets.tolist():
        size = 2 * int(torch.randint(10, 20, (), generator=generator))
        blocks = torch.arange(size) % 2
        chances = (0.3, 0.1) if target else (0.1, 0.3)
        edges.append(block_model(blocks, *chances, generator) + sizes[-1])
        rows.append(2 * blocks - 1 + 0.5 * torch.randn(size, generator=generator))
        sizes.append(sizes[-1] + size)
    graph = Graph.from_edges(torch.cat(edges, 1), sizes[-1])
    x = torch.cat(rows).unsqueeze(1)
    return Batch(x, graph, targets, torch.tensor(sizes))


def kinds_of_graphs(quick: bool, device: torch.device) -> models.Task:
    config = GraphNetworkConfig(
        in_features=1, num_classes=2, dim=32, num_layers=2, messages="sum", pool="mean"
    )
    count = 4 if quick else 32

    def batches() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1)
        while True:
            yield small_graphs(count, generator).to(device)

    held = small_graphs(8 if quick else 256, torch.Generator().manual_seed(2))
    return models.Task(
        model="GraphNetwork, sum, pooled, 2 layers, width 32",
        data="small block models",
        build=functools.partial(GraphNetwork, config),
        batches=batches,
        loss_of=loss_of,
        accuracy_of=functools.partial(accuracy_of, batch=held.to(device)),
        recipe=training.Recipe(4 if quick else 120, 3e-3, decays=True),
        goal=None if quick else GOAL,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    models.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    tasks = (
        club(parsed.quick, device),
        blocks_of_nodes(parsed.quick, device),
        kinds_of_graphs(parsed.quick, device),
    )
    trained = [models.run(task, parsed.kernels, device, log=parsed.log) for task in tasks]
    return models.finish(models.result_of(trained, device), parsed.json)


if __name__ == "__main__":
    sys.exit(main())
