"""Cora and its network: split, normalisation, sparse products with their gradients."""

import os

import pytest
import torch

import fadeout
from fadeout.experiments.data import cora
from fadeout.experiments.data.cora import Graph, Matrix
from fadeout.experiments.training import evaluate, train

needs_data = pytest.mark.skipif(
    not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to the folder that holds cora/cora.content"
)


def small():
    """A ring of six nodes of two classes."""
    adjacency = torch.eye(6) / 2 + torch.eye(6).roll(1, 0) / 2
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    return Graph(
        Matrix(torch.nn.functional.one_hot(labels).float()),
        Matrix(adjacency),
        labels,
        slice(0, 2),
        slice(2, 3),
        slice(3, 6),
    )


def test_a_sparse_product_is_that_of_the_dense_matrix_with_its_gradient():
    dense = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    mine, theirs = (torch.arange(6.0).reshape(3, 2).requires_grad_() for _ in range(2))
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ((Matrix(dense).to("cpu") @ mine) * weights).sum().backward()
    ((dense @ theirs) * weights).sum().backward()
    assert torch.equal(Matrix(dense) @ mine, dense @ theirs)
    assert torch.equal(mine.grad, theirs.grad)


def test_a_graph_is_one_batch_whose_other_labels_are_left_out():
    graph = small()
    assert (graph.steps(100), graph.num_classes) == (1, 2)
    ((x, labels),) = graph.batches(1, epoch=3, seed=0)
    assert x == (graph.features, graph.adjacency)
    assert labels.tolist() == [0, 1, -100, -100, -100, -100]
    assert list(graph.batches(1, epoch=0, seed=0, first=1)) == []
    assert next(graph.tests(1))[1].tolist() == [-100, -100, -100, 1, 0, 1]
    assert next(graph.validation().tests(1))[1].tolist() == [-100, -100, 0, -100, -100, -100]


def test_the_network_learns_and_is_pruned():
    torch.manual_seed(0)
    graph, model = small(), fadeout.models.gcn(num_classes=2, width=4, features=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=100)
    train(model, optimizer, graph, epochs=100, batch_size=1, seed=0)
    before = evaluate(model, graph.tests(1))
    assert pruner.remove().left == 8
    assert evaluate(model, graph.tests(1)) == before
    assert before.top5 == 100  # of two classes
    assert fadeout.measure(model, graph.example).total.parameters == 8 + 4 + 8 + 2


@needs_data
def test_the_data_are_split_and_normalised_as_in_kipfs_program():
    graph = cora()
    features, adjacency = graph.example
    assert features.shape == (2708, 1433)
    assert adjacency.shape == (2708, 2708)
    torch.testing.assert_close(adjacency.sum(1), torch.ones(2708))
    assert torch.equal(adjacency > 0, (adjacency > 0).T)
    assert bool((adjacency.diag() > 0).all())
    assert int((adjacency > 0).sum()) == 2 * 5278 + 2708
    torch.testing.assert_close(features.sum(1), torch.ones(2708))
    assert (graph.train, graph.held_out, graph.test) == (slice(0, 140), slice(200, 500), slice(500, 1500))
    assert graph.num_classes == 7
