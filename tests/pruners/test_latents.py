"""Latent weights: the optimizer steps dense ones, the network has sparse ones."""

import copy
import sys
import threading

import pytest
import torch
from torch import nn

import fadeout
from fadeout import Latent, SelectiveWeightDecay, criteria
from fadeout.pruners import latents


def reference(weight, steps, sparsity, rate, gradient):
    """Plain SGD on latents, with a sort at every step."""
    latent = weight.clone()
    targeted = torch.zeros_like(latent, dtype=torch.bool)
    for number in range(3 * steps // 4):
        moved = latent.add(gradient(weight), alpha=-rate)  # as SGD does, to the last bit
        pace = min(1.5 - 2 * number / steps, 1)  # in full for a quarter of the training, none at three
        latent = torch.where(targeted, latent + pace * (moved - latent), moved)
        t = min(max(((number + 1) / steps - 0.1) / 0.4, 0), 1)
        k = round((1 - (1 - sparsity) ** (t**2 * (3 - 2 * t))) * latent.numel())
        threshold = latent.abs().flatten().sort().values[k - 1] if k else torch.tensor(0.0)
        weight = (1 - (threshold / latent) ** 4).clamp_min(0).sqrt() * latent
        targeted = latent.abs() <= threshold
    settled = weight == 0
    for _ in range(3 * steps // 4, steps):
        weight = weight.add(gradient(weight), alpha=-rate).masked_fill(settled, 0)
    return weight, settled


def test_it_is_sgd_on_latents():
    torch.manual_seed(0)
    model, wanted = nn.Linear(30, 20, bias=False).double(), torch.randn(20, 30).double()
    start = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=48, fade=Latent())
    for _ in range(48):
        optimizer.zero_grad()
        ((model.weight - wanted).square().sum() / 2).backward()
        optimizer.step()
    weight, settled = reference(start, 48, 0.9, 0.1, lambda w: w - wanted)
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-4, atol=1e-6)
    assert torch.equal(pruner.state_dict()["settled"]["weight"], settled)
    assert pruner.state_dict()["latents"] == {}
    before = model.weight.detach().clone()
    assert pruner.fade == 0
    assert pruner.remove().left == 60
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("criterion", [criteria.magnitude, criteria.lamp, criteria.taylor])
def test_between_steps_the_network_is_as_sparse_as_its_target(criterion):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.8, steps=40, fade=Latent(), criterion=criterion
    )
    total = 20 * 30 + 30 * 5
    for _ in range(40):
        target = round(pruner.sparsity_now * total)
        optimizer.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
        zeros = sum(int((model[n].weight == 0).sum()) for n in (0, 2))
        assert target <= zeros <= target + (2 if criterion is criteria.taylor else 0)  # one at the edge, each
    before = copy.deepcopy(model.state_dict())
    pruner.remove()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def write(weight, values):
    with torch.no_grad():
        weight.copy_(values)


WAYS = {  # the last two are not counted by the version of a tensor
    "in place": write,
    "through data": lambda weight, values: weight.data.copy_(values),
    "as new data": lambda weight, values: setattr(weight, "data", values),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_somebody_writes_into_the_weights_counts(way):
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=8, fade=Latent())

    def step():
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()

    for _ in range(3):
        step()
    latent = pruner.state_dict()["latents"]["weight"]
    averaged = model.weight.detach().clone()
    for values in (torch.zeros(10, 10), averaged):  # swapped as averaged weights are for a test
        WAYS[way](model.weight, values)
    step()
    assert torch.equal(pruner.state_dict()["latents"]["weight"], latent)
    written = model.weight.detach().clone()
    written[0, 0] = 7.0
    WAYS[way](model.weight, written)
    step()
    after = pruner.state_dict()["latents"]["weight"]
    assert after[0, 0] == 7.0
    assert torch.equal(after.flatten()[1:], latent.flatten()[1:])


def test_a_write_that_leaves_the_sum_of_all_bits_counts():
    torch.manual_seed(0)
    model = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=100, fade=Latent())
    for change in (lambda w: w.mul_(0.5), lambda w: w.neg_(), lambda w: w.copy_(w.flip(0))):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        with torch.no_grad():
            change(model.weight)
        written = model.weight.detach().clone()
        optimizer.step()
        assert torch.equal(model.weight, written)


def test_a_closure_that_fails_leaves_the_network_sparse():
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Latent())
    for _ in range(6):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
    before = model.weight.detach().clone()

    def closure():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert int((model.weight == 0).sum()) == 50
    assert torch.equal(model.weight, before)


class Interrupted(torch.optim.SGD):
    """Ctrl-C in the middle of a step, when the weights have moved."""

    stop = False

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        if self.stop:
            raise KeyboardInterrupt


LOOKS = {
    "run": lambda model, pruner: model(torch.zeros(1, 10)),
    "compiled": lambda model, pruner: torch.compile(model, backend="eager")(torch.zeros(1, 10)),
    "in inference mode": lambda model, pruner: torch.inference_mode()(model)(torch.zeros(1, 10)),
    "saved": lambda model, pruner: model.state_dict(),
    "masks": lambda model, pruner: pruner.masks(),
    "state": lambda model, pruner: pruner.state_dict(),
    "detached": lambda model, pruner: pruner.detach(),
}


@pytest.mark.parametrize("taken", [6, 9])
@pytest.mark.parametrize("look", LOOKS)
def test_a_step_that_is_interrupted_leaves_the_network_sparse_for_whoever_looks(look, taken):
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    optimizer = Interrupted(model.parameters(), lr=0.1, momentum=0.9)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Latent())
    for number in range(taken + 1):
        model.weight.grad = torch.randn_like(model.weight)
        if number == taken:
            optimizer.stop = True
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
        else:
            optimizer.step()
            assert not model._forward_pre_hooks
    moved = model.weight.detach().clone()
    assert not (moved == 0).any()
    LOOKS[look](model, pruner)
    gone = model.weight == 0  # what is below the threshold of the step before, or has settled
    assert 40 < int(gone.sum()) <= 50
    assert taken == 9 or moved[gone].abs().max() < moved[~gone].abs().min()
    assert not model._forward_pre_hooks
    optimizer.stop = False  # and training goes on
    if look != "detached":
        while pruner.steps_taken < 10:
            model.weight.grad = torch.randn_like(model.weight)
            optimizer.step()
        assert pruner.remove().sparsity == 0.5


def step_until_line(optimizer, last):
    """Step, with Ctrl-C at a line of the module, counted as they run; say whether there are so many."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename != latents.__file__:
            return None
        count += event == "line"
        if count == last and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        optimizer.step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("taken", [0, 1, 4])  # one more is the first, in the middle, and after it has settled
def test_a_step_may_be_interrupted_anywhere(taken):
    def push():
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)

    line, goes_on = 0, True
    while goes_on:
        line += 1
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, fade=Latent())
        for _ in range(taken):
            push()
            optimizer.step()
        zeros = sum(int((p == 0).sum()) for p in model.parameters())
        before = pruner.state_dict()["latents"]
        push()
        after = {n: before[n] - 0.1 * p.grad for n, p in model.named_parameters() if before}
        goes_on = step_until_line(optimizer, line)
        model.state_dict()
        assert sum(int((p == 0).sum()) for p in model.parameters()) >= 0.9 * zeros
        for name, now in pruner.state_dict()["latents"].items():
            assert torch.equal(now, before[name]) or torch.allclose(now, after[name])
        for _ in range(5 - pruner.steps_taken):
            push()
            optimizer.step()
        assert pruner.remove().sparsity == 0.5
    assert line > 10


class Watched(torch.optim.SGD):
    """Another thread looks in the middle of a step, when the weights have moved."""

    def step(self, closure=None):
        super().step()
        thread = threading.Thread(target=self.look)
        thread.start()
        thread.join()


@pytest.mark.parametrize("look", ["run", "saved", "masks", "state"])
def test_another_thread_that_looks_in_the_middle_of_a_step_changes_nothing(look):
    def train(action):
        torch.manual_seed(0)
        model = nn.Linear(10, 10, bias=False)
        optimizer = Watched(model.parameters(), lr=0.1)
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Latent())
        optimizer.look = lambda: action(model, pruner)
        for _ in range(10):
            model.weight.grad = torch.randn_like(model.weight)
            optimizer.step()
        return model.weight

    assert torch.equal(train(LOOKS[look]), train(lambda model, pruner: None))


def test_a_compiled_network_without_breaks_may_be_in_a_closure():
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(compiled, optimizer, sparsity=0.5, steps=5, fade=Latent())

    def closure():
        optimizer.zero_grad()
        loss = compiled(torch.ones(2, 10)).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    assert pruner.remove().sparsity == 0.5


def test_what_is_loaded_after_an_interrupted_step_stays_what_it_is():
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    optimizer = Interrupted(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Latent())
    for _ in range(6):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
    saved = copy.deepcopy([model.state_dict(), pruner.state_dict()])
    optimizer.stop = True
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    model.load_state_dict(saved[0])
    pruner.load_state_dict(saved[1])
    model(torch.zeros(1, 10))
    assert torch.equal(model.weight, saved[0]["weight"])
    assert torch.equal(pruner.state_dict()["latents"]["weight"], saved[1]["latents"]["weight"])


def test_the_best_of_several_moments_may_be_loaded_before_removal():
    """It is as sparse as it will be, but had not settled: its own zeros go, not those of the end."""
    torch.manual_seed(0)
    model = nn.Linear(20, 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.8, steps=40, fade=Latent())
    for step in range(40):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
        if step == 21:
            best = copy.deepcopy(model.state_dict())
    assert not torch.equal(best["weight"] == 0, model.weight == 0)
    model.load_state_dict(best)
    assert pruner.remove().left == 80
    assert torch.equal(model.weight, best["weight"])


def test_a_closure_sees_the_sparse_network():
    torch.manual_seed(0)
    model, seen = nn.Linear(10, 10, bias=False), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    SelectiveWeightDecay(model, optimizer, sparsity=0.8, steps=10, fade=Latent())
    x = torch.randn(16, 10)

    def closure():
        optimizer.zero_grad()
        seen.append(int((model.weight == 0).sum()))
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    for _ in range(10):
        seen.clear()
        optimizer.step(closure)
    assert len(seen) > 1
    assert min(seen) > 60


def test_a_skipped_step_leaves_the_network_sparse():
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.8, steps=4, fade=Latent())
    for _ in range(3):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    before = model.weight.detach().clone()
    optimizer.found_inf = torch.tensor(1.0)  # as GradScaler says it to fused optimizers
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)
    for hook in list(optimizer._optimizer_step_pre_hooks.values()):
        hook(optimizer, (optimizer,), {})
    assert torch.equal(model.weight, before)


def test_low_precision():
    torch.manual_seed(0)
    model = nn.Linear(40, 40, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=20, fade=fadeout.Latent())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 40).bfloat16()).square().mean().backward()
        optimizer.step()
    assert pruner.fade == 0
    assert model.weight.isfinite().all()
    assert int((model.weight != 0).sum()) <= 160


def test_a_network_that_becomes_wider_keeps_small_steps():
    """As with model.float() in the middle: of 1 - 1e-4 bfloat16 would make 1 again, at every step."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    model.weight.data = torch.arange(1.0, 17.0).view(4, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1000)
    for number in range(4):
        if number == 1:
            model.float()
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    assert pruner.state_dict()["latents"]["weight"].dtype == torch.float32
    torch.testing.assert_close(model.weight[0, 0].item(), 1 - 3e-4)


def test_compiled_and_plain_steps_are_the_same_to_the_last_bit():
    ends = []
    for compile in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        structure = fadeout.Elements(compile=compile)
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=24, structure=structure)
        for _ in range(17):  # short of the last quarter, where there are no latents any more
            optimizer.zero_grad()
            model(torch.randn(16, 300)).square().mean().backward()
            optimizer.step()
        ends.append({**model.state_dict(), **pruner.state_dict()["latents"], "x": model[0].weight.detach()})
    assert all(torch.equal(one, other) for one, other in zip(ends[0].values(), ends[1].values(), strict=True))


def test_where_nothing_is_targeted_a_latent_of_zero_moves_at_full_pace():
    model = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=100, fade=Latent())
    for _ in range(2):
        model.weight.grad = torch.ones_like(model.weight) - model.weight.detach().abs()
        optimizer.step()
    assert torch.equal(model.weight, torch.full((4, 4), -1.0))


def pushed(gradient, emptied=True, normed=True):
    """How far each row has moved, in the largest of its weights, where the first may have none left."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), *([nn.BatchNorm1d(4)] if normed else []))
    weight = model[0].weight
    with torch.no_grad():
        weight.copy_(torch.linspace(1, 2, 16).view(4, 4))
        (weight[0] if emptied else weight[:, 0]).mul_(0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=lambda progress: 0.25, steps=100, fade=Latent())
    weight.grad = torch.zeros(4, 4)
    optimizer.step()
    before = pruner.state_dict()["latents"]["0.weight"].clone()
    weight.grad = torch.tensor(gradient)[:, None].expand(4, 4).contiguous()
    optimizer.step()
    return ((before - pruner.state_dict()["latents"]["0.weight"]).amax(1) / 1e-3).tolist()


def test_rows_without_a_weight_feel_no_more_than_others():
    """As channels before a batch-norm would, which divides by how little they vary."""
    close = pytest.approx
    assert pushed([500.0, 2.0, 1.0, 3.0]) == close([2.0, 2.0, 1.0, 3.0], rel=1e-3)
    assert pushed([0.5, 2.0, 1.0, 3.0]) == close([0.5, 2.0, 1.0, 3.0], rel=1e-3)
    assert pushed([500.0, 2.0, 1.0, 3.0], emptied=False)[0] == close(500, rel=1e-3)
    assert pushed([500.0, 2.0, 1.0, 3.0], normed=False)[0] == close(500, rel=1e-3)


def test_where_no_row_has_a_weight_gradients_stay_what_they_are():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=lambda progress: 0.5, steps=100, criterion=criteria.magnitude
    )
    for _ in range(2):
        before = pruner.state_dict()["latents"]["0.weight"].clone()
        for layer in model[:2]:
            layer.weight.grad = torch.ones(4, 4)
        optimizer.step()
    moved = before - pruner.state_dict()["latents"]["0.weight"]
    assert torch.allclose(moved, torch.full((4, 4), 1e-3), rtol=1e-3)
