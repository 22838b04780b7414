# SPDX-License-Identifier: MIT
"""The graph network's own parts: messages, pooling and inputs."""

from __future__ import annotations

import pytest
import torch

from transformer_kernels.functional import Graph

from .conftest import GRAPH, graph_batch, graph_network

each_kernels = pytest.mark.parametrize("kernels", ["ours", "torch"])
each_message = pytest.mark.parametrize("messages", ["sum", "mean", "max", "attention"])
each_pool = pytest.mark.parametrize("pool", ["sum", "mean", "max"])


@each_kernels
@each_message
def test_nodes_may_be_numbered_otherwise(kernels, messages):
    model = graph_network(kernels, messages=messages)
    x, edges, _ = graph_batch()
    expected = model(x, Graph.from_edges(edges, len(x)))
    places = torch.randperm(len(x))  # where each node goes
    moved = torch.empty_like(x).index_copy(0, places, x)
    found = model(moved, Graph.from_edges(places[edges], len(x)))[places]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@each_kernels
@each_message
def test_edges_may_come_in_any_order(kernels, messages):
    model = graph_network(kernels, messages=messages)
    x, edges, weight = graph_batch()
    options = {} if messages == "attention" else {"weight": weight}
    expected = model(x, Graph.from_edges(edges, len(x)), **options)
    mixed = torch.randperm(edges.shape[1])
    options = {name: value[mixed] for name, value in options.items()}
    found = model(x, Graph.from_edges(edges[:, mixed].int(), len(x)), **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@each_kernels
@each_message
def test_a_message_goes_as_far_as_there_are_layers(kernels, messages):
    model = graph_network(kernels, messages=messages)
    x = torch.randn(5, GRAPH["in_features"])
    line = Graph.from_edges(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 5)
    changed = x.clone()
    changed[0] += 1
    differs = (model(x, line) - model(changed, line)).abs().amax(1) > 1e-6
    assert differs.tolist() == [True, True, True, False, False]


@each_kernels
@each_message
@each_pool
def test_graphs_side_by_side_are_graphs_alone(kernels, messages, pool):
    model = graph_network(kernels, messages=messages, pool=pool)
    graphs = [graph_batch(nodes, 4 * nodes)[:2] for nodes in (6, 1, 9)]
    alone = [model(x, Graph.from_edges(edges, len(x))) for x, edges in graphs]
    offsets = torch.tensor([0, 6, 7, 16])
    edges = torch.cat([e + at for (_, e), at in zip(graphs, offsets.tolist(), strict=False)], 1)
    together = model(torch.cat([x for x, _ in graphs]), Graph.from_edges(edges, 16),
                     offsets=offsets)  # fmt: skip
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@each_kernels
@each_message
def test_nodes_without_edges_and_graphs_without_nodes(kernels, messages):
    nodes, graphs = (graph_network(kernels, messages=messages, pool=p) for p in (None, "mean"))
    none = torch.empty(2, 0, dtype=torch.long)
    x = torch.randn(4, GRAPH["in_features"], requires_grad=True)
    nodes(x, Graph.from_edges(none, 4)).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert nodes(x[:0], Graph.from_edges(none, 0)).shape == (0, 3)
    found = graphs(x, Graph.from_edges(none, 4), offsets=torch.tensor([0, 0, 4, 4]))
    torch.testing.assert_close(found[0], graphs.head.bias)  # nothing is 0, whatever is made of it
    torch.testing.assert_close(found[2], found[0])


@each_kernels
@each_message
def test_it_learns_who_is_pointed_at(kernels, messages):
    """A node's class is that of the one node with an edge to it."""
    torch.manual_seed(0)
    model = graph_network(kernels, messages=messages, num_classes=2, num_heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(50):
        x = torch.randn(32, GRAPH["in_features"])
        sources = torch.randint(32, (32,))
        graph = Graph.from_edges(torch.stack((sources, torch.arange(32))), 32)
        loss = model(x, graph, (x[sources, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.45


@each_kernels
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(4, 9)}, r"x has shape \(4, 9\), expected \(nodes, 5\)"),
        ({"x": torch.zeros(4, 5).double()}, "x is float64, expected float32"),
        ({"x": None}, "x is NoneType, expected a Tensor"),
        ({"x": torch.zeros(3, 5)}, "graph has 4 sources and 4 targets, expected 3 of both"),
        ({"graph": torch.zeros(2, 3).long()}, r"graph is Tensor, expected a Graph \(Graph.from"),
        ({"graph": Graph.from_edges(torch.zeros(2, 1).long(), (4, 2))}, "and 2 targets, expected"),
        ({"weight": torch.ones(4)}, r"weight has shape \(4,\), expected \(3,\)"),
        ({"offsets": [0, 4]}, "offsets is list, expected a Tensor"),
        ({"offsets": torch.tensor([0.0, 4.0])}, "offsets is float32, expected int32 or int64"),
        ({"offsets": torch.tensor([], dtype=torch.int32)}, "offsets has 0 elements, expected at"),
        ({"offsets": torch.tensor([0, 3])}, r"offsets is \[0, 3\], expected numbers that rise"),
        ({"offsets": torch.tensor([0, 5, 4])}, r"offsets is \[0, 5, 4\], expected numbers that"),
        ({"offsets": torch.tensor([0, 4]), "targets": torch.zeros(4).long()},
         r"targets has shape \(4,\), expected \(1,\)"),
    ],
)  # fmt: skip
def test_what_no_network_takes(kernels, given, message):
    model = graph_network(kernels, pool="mean")
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    arguments = {"x": torch.zeros(4, 5), "graph": Graph.from_edges(edges, 4), **given}
    with pytest.raises((ValueError, TypeError), match=message):
        model(**arguments)


def test_what_does_not_go_together():
    x, edges, weight = graph_batch()
    graph = Graph.from_edges(edges, len(x))
    with pytest.raises(ValueError, match="GraphNetwork: offsets is given, expected none with pool"):
        graph_network()(x, graph, offsets=torch.tensor([0, len(x)]))
    with pytest.raises(ValueError, match="GraphNetwork: weight is given, expected none with mess"):
        graph_network(messages="attention")(x, graph, weight=weight)


def test_an_index_out_of_range_is_no_graph():
    with pytest.raises(IndexError):
        Graph.from_edges(torch.tensor([[0], [7]]), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_features": 0}, "in_features is 0, expected at least 1"),
        ({"num_classes": 0}, "num_classes is 0, expected at least 1"),
        ({"messages": "min"}, "messages is 'min', expected one of 'sum', 'mean', 'max'"),
        ({"pool": "class"}, "pool is 'class', expected one of 'sum', 'mean', 'max'"),
        ({"num_kv_heads": 1}, "num_kv_heads is 1, expected None"),
    ],
)  # fmt: skip
def test_what_no_graph_network_can_be(options, message):
    with pytest.raises((ValueError, TypeError), match=f"GraphNetworkConfig: {message}"):
        graph_network(**options)
