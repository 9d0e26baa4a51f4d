"""Data sets in memory: order of batches, augmentation, resuming, held-out part."""

import pytest
import torch

from fadeout.experiments.data import Dataset


def numbered(count=10, **options):
    """Inputs that are their own labels."""
    numbers = torch.arange(count)
    return Dataset(numbers.float(), numbers, numbers[:7].float(), numbers[:7], **options)


def noisy(count=10):
    return numbered(
        count,
        prepare=lambda x: x * 100,
        augment=lambda x, generator: x + torch.rand(len(x), generator=generator) / 2,
    )


def test_batches_depend_on_seed_and_epoch_alone():
    data = numbered()

    def order(epoch, seed):
        torch.rand(3)  # the global generator has no part in it
        return torch.cat([y for _, y in data.batches(3, epoch=epoch, seed=seed)]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len(set(map(tuple, (order(0, 0), order(1, 0), order(0, 1), order(1, 1))))) == 4
    assert len(set(order(0, 0))) == 9 == 3 * data.steps(3)  # none twice, and no incomplete batch
    for x, y in data.batches(3, epoch=0, seed=0):
        assert torch.equal(x.long(), y)


def test_the_order_is_that_of_the_committed_results():
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2 * 10_007 + 3))
    found = torch.cat([y for _, y in numbered().batches(2, epoch=3, seed=2)])
    assert torch.equal(found, order)
    # augmentation leaves it alone
    assert torch.equal(torch.cat([y for _, y in noisy().batches(2, epoch=3, seed=2)]), order)


def test_a_resumed_epoch_sees_the_same_batches():
    data = noisy()
    whole = list(data.batches(3, epoch=2, seed=1))
    for first in range(4):
        rest = list(data.batches(3, epoch=2, seed=1, first=first))
        assert len(rest) == 3 - first
        for (x, y), (same_x, same_y) in zip(whole[first:], rest, strict=True):
            assert torch.equal(x, same_x)
            assert torch.equal(y, same_y)


def test_every_batch_is_augmented_in_its_own_way():
    def noise(**which):
        return [tuple((x / 100 - y).tolist()) for x, y in noisy().batches(5, **which)]

    batches = [noise(epoch=epoch, seed=seed) for epoch in range(3) for seed in (0, 1, -1, 10_007)]
    drawn = [round(value, 4) for epoch in batches for batch in epoch for value in batch]
    assert len(set(drawn)) > 0.95 * len(drawn)


def test_training_is_augmented_and_the_test_is_only_prepared():
    data = noisy()
    for x, y in data.batches(5, epoch=0, seed=0):
        assert torch.equal((x / 100).long(), y)
        assert not torch.equal(x, y * 100.0)
    tests = list(data.tests(3))
    assert [len(y) for _, y in tests] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in tests]), data.test_x * 100)
    assert torch.equal(torch.cat([y for _, y in tests]), data.test_y)
    assert torch.equal(data.example, data.test_x[:1] * 100)


def test_the_held_out_part_is_fixed_and_has_the_classes_in_proportion():
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate((50, 30, 20))])
    labels = labels[torch.randperm(100)]
    data = Dataset(torch.arange(100.0), labels, torch.zeros(0), torch.zeros(0).long())
    part = data.validation(0.2)
    assert part.test_y.bincount().tolist() == [10, 6, 4]
    assert part.train_y.bincount().tolist() == [40, 24, 16]
    both = torch.cat([part.train_x, part.test_x])
    assert torch.equal(both.sort().values, data.train_x)  # none lost, none in both
    for x, y in ((part.train_x, part.train_y), (part.test_x, part.test_y)):
        assert torch.equal(labels[x.long()], y)
    torch.manual_seed(9)
    assert torch.equal(data.validation(0.2).test_x, part.test_x)
    assert len(data.validation().test_y) == 10


def test_the_held_out_part_is_prepared_too():
    x, y = torch.arange(40.0), torch.arange(40) % 2
    part = Dataset(x, y, x, y, prepare=lambda x: x + 1000).validation(0.5)
    assert all((x >= 1000).all() for x, _ in part.tests(7))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_wrong_fraction_is_named(fraction):
    with pytest.raises(ValueError, match=r"a fraction of .* between 0 and 1"):
        numbered().validation(fraction)


def test_too_few_to_hold_out():
    with pytest.raises(ValueError, match="10 inputs are too few to hold out 10%"):
        numbered().validation(0.1)


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_wrong_batch_size_is_named(batch_size):
    with pytest.raises(ValueError, match=rf"a batch of {batch_size} from 10 inputs .* take 1 to 10"):
        list(numbered().batches(batch_size, epoch=0, seed=0))
