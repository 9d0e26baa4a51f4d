"""Network slimming: the penalty's gradient and loss, by hand."""

import pytest
import torch
from torch import nn

import fadeout
from fadeout.methods.slimming import Slimming

SCALES = [0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 0.25]


def network():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.BatchNorm2d(3)
    )
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor(SCALES))
    return model


def slimming(model, optimizer, **options):
    structure = fadeout.Channels(torch.zeros(1, 1, 4, 4))
    return Slimming(
        model, optimizer, steps=10, structure=structure, **{"strength": 0.5, "authors": False, **options}
    )


def stepped(maximize=False, **options):
    """What one step of gradient descent, with no other gradient, subtracts from the scales, over lr."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
    slimming(model, optimizer, **options)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    others = {n: p.detach().clone() for n, p in model.named_parameters() if n != "1.weight"}
    optimizer.step()
    for name, parameter in model.named_parameters():
        if name != "1.weight":
            assert torch.equal(parameter, others[name]), name  # shifts, weights and the last norm are free
    return ((torch.tensor(SCALES) - model[1].weight.detach()) / 0.1).tolist()


def test_the_gradient_of_smooth_l1():
    wanted = [0.5 * s for s in (0.0, 0.5, -0.5, 1.0, -1.0, 1.0, -1.0, 0.25)]
    assert stepped() == pytest.approx(wanted, abs=1e-6)
    assert stepped(maximize=True) == pytest.approx(wanted, abs=1e-6)  # it climbs, and the penalty still falls


def test_the_gradient_of_the_authors_penalty():
    # x^2 up to 1, and beyond it x itself: a scale below -1 is pushed further down
    wanted = [0.5 * s for s in (0.0, 1.0, -1.0, 2.0, -2.0, 1.0, 1.0, 0.5)]
    assert stepped(authors=True) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("authors", "penalty"),
    [
        (False, 0 + 0.125 + 0.125 + 0.5 + 0.5 + 1.5 + 1.5 + 0.03125),
        (True, 0 + 0.25 + 0.25 + 1 + 1 + 2 - 2 + 0.0625),
    ],
)
def test_a_closure_gets_the_penalty_with_its_loss(authors, penalty):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slimming(model, optimizer, authors=authors)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.zeros(2, 1, 4, 4)).sum() * 0 + 7
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(7 + 0.5 * penalty)


def test_it_removes_nothing_and_lets_go(hooks_on):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = slimming(model, optimizer)
    assert (pruner.factor_now, pruner.sparsity_now) == (1.0, 0.0)
    assert hooks_on(optimizer) > 0
    assert not pruner.remove()
    assert hooks_on(optimizer) == 0
    assert model[1].weight.tolist() == SCALES


def test_it_resumes_where_it_was():
    model = network()
    one = slimming(model, torch.optim.SGD(model.parameters(), lr=0.1))
    one._clock.step = 4
    one.detach()
    other = slimming(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other.load_state_dict(one.state_dict())
    assert other.progress == 0.4


def test_wrong_input():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="from 0 on, got -1"):
        slimming(model, optimizer, strength=-1)
    with pytest.raises(ValueError, match="needs batch-norms"):
        Slimming(model, optimizer, strength=1.0, steps=10, structure=fadeout.Elements())
