"""PAT: what torchao's own optimizer does, to the exact target, whatever the memory format."""

import itertools
import sys

import pytest
import torch
from torch import nn

from fadeout import Channels, Elements, schedules
from fadeout._checks import MissingExtraError
from fadeout.methods.external.pat import PAT

STEPS = 40  # four of warm-up, 26 under the constraint, ten of healing


@pytest.fixture
def pat():
    return pytest.importorskip("torchao.prototype.pat")


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)
    return nn.Sequential(*layers).double()


def go(model, optimizer, steps=STEPS, after=lambda: None):
    for step in range(steps):
        x = torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, 0, 0].argmax(1)).backward()
        optimizer.step()
        after()


def zeros(model):
    return sum(int((p == 0).sum()) for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize("options", [{"momentum": 0.9, "weight_decay": 5e-4}, {}], ids=str)
def test_it_is_torchaos_own_optimizer(pat, options):
    """Set up as its documentation says: the optimizer wrapped, its groups split."""
    theirs, ours = network(), network()
    weights = [p for p in theirs.parameters() if p.dim() > 1]
    pruned = {
        "params": weights,
        "group_type": "ElemGrouper",
        "prox_type": "GlobalMinSparsityConstraint",
        "min_sparsity": 0.75,
        "min_sparsity_schedule": True,
    }
    others = {"params": [p for p in theirs.parameters() if p.dim() <= 1]}
    base = torch.optim.SGD([pruned, others], lr=0.1, **options)
    wrapped = pat.PruneOptimizer(base, warmup_steps=4, healing_start_step=30)
    counts = []
    go(theirs, wrapped, after=lambda: counts.append(zeros(theirs)))

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, **options)
    pruner, own = PAT(ours, optimizer, sparsity=0.75, steps=STEPS), []
    go(ours, optimizer, after=lambda: own.append(zeros(ours)))
    assert own == counts
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    for name, weight in zip(pruner.parameters, weights, strict=True):
        assert torch.equal(pruner.state_dict()["latents"][name], wrapped.state[weight]["latent"])


@pytest.mark.parametrize("sparsity", [0.6001, 0.75, 0.9, schedules.cubic(0.8)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_target_is_met_exactly_and_removal_takes_nothing(pat, sparsity, layout):
    model = network().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner, counts = PAT(model, optimizer, sparsity=sparsity, steps=STEPS), []
    go(model, optimizer, after=lambda: counts.append(zeros(model)))
    wanted = round(pruner.final_sparsity * (8 * 2 * 9 + 32 * 5))
    assert counts[:4] == [0] * 4
    assert counts == sorted(counts)
    assert counts[29:] == [wanted] * 11
    assert pruner.sparsity_now == pruner.final_sparsity
    assert pruner.fade == 0
    before = [p.detach().clone() for p in model.parameters()]
    assert zeros(model) == sum(int((~mask).sum()) for mask in pruner.remove().values())
    assert all(map(torch.equal, model.parameters(), before))


def test_weights_come_back_until_it_heals(pat):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    PAT(model, optimizer, sparsity=0.75, steps=STEPS)
    gone = []
    go(model, optimizer, after=lambda: gone.append(model[4].weight == 0))
    back = [bool((before & ~after).any()) for before, after in itertools.pairwise(gone)]
    assert any(back[:29])
    assert not any(back[29:])
    assert int(model[4].weight.grad[gone[-1]].count_nonzero())  # what is fixed has a gradient, and stays


def test_each_layer_apart(pat):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PAT(model, optimizer, sparsity=0.75, steps=STEPS, structure=Elements("layer"))
    go(model, optimizer)
    assert [int((model[i].weight == 0).sum()) for i in (0, 4)] == [108, 120]


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_however_short_a_training_is_it_ends_at_the_target(pat, steps):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PAT(model, optimizer, sparsity=0.75, steps=steps)
    go(model, optimizer, steps)
    assert zeros(model) == 228


def test_other_structures_are_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Channels(torch.zeros(1, 2, 4, 4).double())
    with pytest.raises(ValueError, match=r"single weights: structure is fadeout\.Elements\(\), got Channels"):
        PAT(model, optimizer, sparsity=0.5, steps=10, structure=structure)


def test_without_torchao_it_says_what_to_install(monkeypatch, hooks_on):
    monkeypatch.setitem(sys.modules, "torchao.prototype.pat", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(MissingExtraError, match=r'torchao is not installed: pip install "fadeout\[bench\]"'):
        PAT(model, optimizer, sparsity=0.5, steps=10)
    assert hooks_on(optimizer) == 0
