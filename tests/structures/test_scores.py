"""Scores of the weights: dtypes, gradients, and what a criterion may not return."""

import math

import pytest
import torch
from torch import nn

import fadeout
from fadeout import criteria
from fadeout.structures.scores import keep_down, scores_of, widened


def weights(dtype=torch.float32):
    return {"a": nn.Parameter(torch.tensor([1.0, -2.0], dtype=dtype))}


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_a_criterion_sees_float32_or_wider(dtype, wide):
    assert scores_of(weights(dtype), criteria.magnitude)["a"].dtype == wide
    assert widened(torch.ones(1, dtype=dtype)).dtype == wide


def test_gradients_come_without_the_scale_of_the_loss():
    parameters = weights()
    parameters["a"].grad = torch.tensor([8.0, 4.0])
    scales = {id(parameters["a"]): 4.0}
    assert scores_of(parameters, criteria.taylor, scales)["a"].tolist() == [2.0, 2.0]
    assert scores_of(parameters, criteria.taylor)["a"].tolist() == [8.0, 8.0]


def test_a_missing_gradient_is_zero_and_a_sparse_one_is_read():
    parameters = weights()
    assert scores_of(parameters, criteria.gradient_magnitude)["a"].tolist() == [0.0, 0.0]
    parameters["a"].grad = torch.sparse_coo_tensor([[1]], [-3.0], (2,), check_invariants=True)
    assert scores_of(parameters, criteria.gradient_magnitude)["a"].tolist() == [0.0, 3.0]


def test_scores_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"gave scores of shape \(\) for 'a', which has shape \(2,\)"):
        scores_of(weights(), lambda weight, gradient: weight.sum())


@pytest.mark.parametrize("criterion", [lambda w, g: w.abs().argsort().argsort(), lambda w, g: w.abs() > 1])
def test_ranks_and_conditions_are_scores(criterion):
    scores = scores_of(weights(), criterion)
    assert all(score.dtype == torch.float32 for score in scores.values())
    gone = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    assert all((score == -math.inf).all() for score in keep_down(scores, gone).values())


def test_what_is_gone_goes_first():
    scores = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    kept = keep_down(scores, {"a": torch.tensor([False, True])})
    assert (kept["a"].tolist(), kept["b"].tolist()) == ([1.0, -math.inf], [3.0])
    assert scores["a"].tolist() == [1.0, 2.0]


def test_a_criterion_that_changes_the_weights_is_refused():
    with pytest.raises(ValueError, match="changes the weights of 'a' in place"):
        scores_of(weights(), lambda weight, gradient: weight.abs_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_can_be_asked_for_in_inference_mode(dtype):
    with torch.inference_mode():
        assert scores_of(weights(dtype), criteria.magnitude)["a"].tolist() == [1.0, 2.0]
    model = nn.Linear(4, 4).to(dtype)
    pruner = fadeout.SelectiveWeightDecay(
        model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5, steps=4
    )
    with torch.inference_mode():  # as in an evaluation that prints figures
        assert pruner.summary().total.left == pruner.masks().left == 8


def test_scores_by_gradients_before_the_first_step_say_what_to_do():
    model = nn.Linear(4, 4)
    pruner = fadeout.SelectiveWeightDecay(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        sparsity=0.5,
        steps=4,
        criterion=lambda weight, gradient: weight.abs(),
    )
    with pytest.raises(ValueError, match=r"no step has been taken yet: ask after the first"):
        pruner.summary()
