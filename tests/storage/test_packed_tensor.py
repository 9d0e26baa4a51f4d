"""Tensors as bytes: every bit comes back, and zeros take little room."""

import zlib

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fadeout.storage.packed_tensor import Packed, count_nonzero, pack, unpack

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
TYPES += [torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def assert_same(one, other):
    assert (one.dtype, one.shape, bits(one)) == (other.dtype, other.shape, bits(other))


def again(tensor):
    packed, stored = pack(tensor)
    return unpack(packed, memoryview(stored.reshape(-1).view(torch.uint8).numpy()))


@given(
    dtype=st.sampled_from(TYPES),
    shape=st.lists(st.integers(0, 12), max_size=3),
    there=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    negative=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_every_bit_of_every_type_comes_back(dtype, shape, there, negative, seed):
    # random bytes hold every kind of NaN, infinity and denormal number
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.tensor(shape).prod()) if shape else 1
    words = torch.randint(256, (count, dtype.itemsize), generator=generator).to(torch.uint8)
    words[torch.rand(count, generator=generator) >= there] = 0
    words[torch.rand(count, generator=generator) < negative] = torch.tensor(
        [0] * (dtype.itemsize - 1) + [128], dtype=torch.uint8
    )
    if dtype == torch.bool:
        words = (words > 0).byte()
    tensor = words.reshape(-1).view(dtype).reshape(shape)
    assert_same(again(tensor), tensor)


@pytest.mark.parametrize(
    ("there", "way"),
    [
        ([0], "gaps8"),
        ([], "gaps8"),
        ([254, 510, 1100], "gaps8"),
        ([69999], "gaps16"),
        (range(0, 70000, 5), "bitmask"),
    ],
)
def test_positions_far_apart_and_near_take_the_smallest_way(there, way):
    tensor = torch.zeros(70000)
    tensor[list(there)] = 1.5
    packed, stored = pack(tensor)
    assert (packed.positions, packed.values) == (way, len(there))
    assert stored.numel() <= 4 * len(there) + 8750
    assert_same(again(tensor), tensor)


def test_sizes_by_hand():
    ten = torch.zeros(1000)
    ten[::100] = 1
    assert pack(ten)[1].numel() == 10 * (4 + 1)
    half = torch.arange(1000).fmod(2).float()
    assert pack(half)[1].numel() == 500 * 4 + 125
    assert pack(torch.randn(1000))[0].positions == "dense"


def test_negative_zeros_take_a_bit():
    tensor = torch.full((1000,), -0.0)
    tensor[::2], tensor[::100] = 0, 1
    packed, stored = pack(tensor)
    assert (packed.positions, packed.negative) == ("gaps8", "bitmask")
    assert stored.numel() == 10 * (4 + 1) + 125
    assert_same(again(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3],
        torch.ones(1).expand(5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.nn.Parameter(torch.zeros(2, 2)),
    ],
)
def test_views_scalars_and_empty_tensors(tensor):
    assert_same(again(tensor), tensor.resolve_conj())


def test_what_cannot_be_stored_is_named():
    with pytest.raises(ValueError, match="sparse_coo"):
        pack(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="meta"):
        pack(torch.empty(3, device="meta"))


def test_altered_bytes_and_unknown_forms_are_refused():
    packed, stored = pack(torch.eye(30))
    altered = bytearray(stored.numpy())
    altered[7] ^= 1
    with pytest.raises(ValueError, match="altered"):
        unpack(packed, memoryview(altered))
    with pytest.raises(ValueError, match="unknown way, 'runs'"):
        unpack(Packed("float32", [30, 30], packed.checksum, "runs", 30), memoryview(stored.numpy()))
    with pytest.raises(ValueError, match="no type 'float5'"):
        Packed("float5", [30, 30], packed.checksum)


@pytest.mark.parametrize(
    ("positions", "values", "shape", "words"),
    [
        ("gaps8", 31, [30, 30], "30 positions"),
        ("gaps8", 10**6, [30, 30], "1000000 values take more than"),
        ("gaps8", 30, [30, 29], "values outside of its shape"),
        ("bitmask", 30, [2**40], "are not in"),
        ("dense", 0, [30, 30], "bytes are no tensor of the shape"),
    ],
)
def test_a_form_that_does_not_fit_its_bytes_is_refused(positions, values, shape, words):
    _, stored = pack(torch.eye(30))
    bytes_of = stored if values != 31 else torch.cat([torch.zeros(4, dtype=torch.uint8), stored])
    wrong = Packed("float32", shape, zlib.crc32(bytes_of.numpy().data), positions, values)
    for read in (unpack, count_nonzero):
        with pytest.raises(ValueError, match=words):
            read(wrong, memoryview(bytes_of.numpy()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_nonzero_is_counted_as_torch_does(dtype):
    tensor = torch.zeros(40, 40, dtype=dtype)
    tensor[3], tensor[4] = 1, -0.0
    for one in (tensor, tensor + 1, tensor[:0]):
        packed, stored = pack(one)
        content = memoryview(stored.flatten().view(torch.uint8).numpy().tobytes())
        assert count_nonzero(packed, content) == int(one.count_nonzero())
