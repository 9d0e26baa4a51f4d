"""The restricted unpickler: plain data comes out as it went in, and nothing else comes out or runs."""

import collections
import os
import pickle
import pickletools

import numpy as np
import pytest

from fadeout.experiments.data import pickles


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_data_comes_out_as_it_went_in(protocol):
    shared = [1, 2]
    data = {"a": [1, 2.5, True, None, "text", 2**70], "b": {"c": (3, [])}, "twice": [shared, shared]}
    assert pickles.load(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "i8", "<f4", ">i2", "?"])
def test_arrays_come_out_as_they_went_in(protocol, dtype):
    array = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    # Python 3 writes no bytes at all into an old pickle by a way that no publisher's file needs
    for values in (array, np.asfortranarray(array), array[: 3 if protocol == 2 else 0]):
        loaded = pickles.load(pickle.dumps({b"data": values}, protocol))[b"data"]
        assert loaded.dtype == values.dtype
        assert loaded.shape == values.shape
        assert (loaded == values).all()


def test_names_of_both_numpys_are_known():
    # numpy 1 writes numpy.core, numpy 2 numpy._core; a name in a pickle of protocol 2 ends with a newline
    content = pickle.dumps(np.arange(3, dtype="u1"), 2)
    other = (
        content.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
        if b"numpy._core" in content
        else content.replace(b"numpy.core.multiarray\n", b"numpy._core.multiarray\n")
    )
    assert content != other
    assert pickles.load(content).tolist() == pickles.load(other).tolist() == [0, 1, 2]


def test_strings_of_python_2_become_bytes():
    assert pickles.load(b"\x80\x02U\x03\xff\x00a.") == b"\xff\x00a"


class _Calls:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "call",
    [
        _Calls(os.system, "echo run > {}"),
        _Calls(eval, "open({!r}, 'w').close()"),
        _Calls(exec, "open({!r}, 'w').close()"),
        _Calls(open, "{}", "w"),
        _Calls(getattr, "text", "join"),
        _Calls(np.save, "{}", 1),
        _Calls(np.fromfile, "{}"),
    ],
    ids=["system", "eval", "exec", "open", "getattr", "save", "fromfile"],
)
def test_functions_are_refused_and_do_not_run(tmp_path, call, protocol):
    target = tmp_path / "ran"
    function, arguments = call.reduced
    filled = [a.format(str(target)) if isinstance(a, str) else a for a in arguments]
    attack = _Calls(function, *filled)
    for content in (attack, {"data": [attack]}, [np.zeros(2), (attack,)]):
        with pytest.raises(ValueError, match="has no use for"):
            pickles.load(pickle.dumps(content, protocol))
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",  # the opcode INST looks a name up and calls it
        b"(cbuiltins\neval\nS'1'\no.",  # OBJ
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",  # an attribute of what is allowed
        b"c_codecs\ndecode\n.",
        b"cnumpy\nload\n.",
        b"cfadeout.experiments.data.pickles\n_Array\n.",
        b"P1\n.",  # a persistent name
        b"\x80\x02\x82\x01.",  # the extension registry
    ],
)
def test_every_way_to_a_name_is_closed(content):
    with pytest.raises(ValueError, match=r"has no use for|no pickle of plain data|extension code"):
        pickles.load(content)


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
BYTES = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR"


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(np.array([{}, None], dtype=object), 2),
        pickle.dumps(np.zeros(2, dtype="u1,f4"), 2),
        pickle.dumps(np.array(["a"]), 2),
        pickle.dumps(np.zeros(2, dtype="M8[s]"), 2),
        pickle.dumps(np.float64(1), 2),
        pickle.dumps(np.arange(3), 5),  # protocol 5 has a way of its own
        pickle.dumps({1, 2}, 4),
        pickle.dumps(1j, 2),
        pickle.dumps(bytearray(b"a"), 5),
        pickle.dumps(collections.OrderedDict(a=1), 2),
        pickle.dumps(np.ndarray, 2),
        pickle.dumps(np.dtype("u1"), 2),
        ARRAY + b"(I1\n(I1000000\nt" + BYTES + b"I00\nS'abc'\ntb.",  # larger than its content
        ARRAY + b"(I1\n(I-1\nI-3\nt" + BYTES + b"I00\nS'abc'\ntb.",  # negative sizes with the right product
        ARRAY + b"(I1\n(I3\nt" + BYTES + b"I00\n(lS'abc'\natb.",  # a list in place of the content
        ARRAY + b"(I1\n(I3\ntS'O'\nI00\nS'abc'\ntb.",
        BYTES + b"(I3\nS'|'\n(lNNI-1\nI-1\nI0\ntb.",  # parts of a type
        b"cnumpy\ndtype\n(dS'a'\nI1\nsb.",  # to set an attribute of what may be called
        b"c_codecs\nencode\n(Vabc\nS'rot13'\ntR.",
        b"c_codecs\nencode\n(I5\nS'latin1'\ntR.",
        b"(lp0\ng0\na.",  # a list in itself
        b"",
        b"not a pickle",
        pickle.dumps({"a": 1}, 2)[:-3],
        b"(" * 10 + b"l" * 3,
        b"(l" + b"(l" * 100_000 + b"a" * 100_000 + b".",  # deeper than Python can follow
    ],
)
def test_anything_but_plain_data_is_refused(content):
    with pytest.raises(ValueError, match="pickle"):
        pickles.load(content)


def test_a_pickle_cannot_change_what_the_next_one_may_do():
    names = dict(pickles._STAND_INS)
    attributes = {stand_in: set(vars(stand_in)) for stand_in in names.values()}
    for module, name in names:
        attack = f"c{module}\n{name}\n".encode() + b"(dS'_function'\ncos\nsystem\nsb."
        with pytest.raises(ValueError, match=r"has no use for os\.system"):
            pickles.load(attack)
        harmless = f"c{module}\n{name}\n".encode() + b"(N(dS'_function'\nI1\nstb."
        with pytest.raises(ValueError, match="pickle"):
            pickles.load(harmless)
        slots = f"c{module}\n{name}\n".encode() + b"(N(dS'__slots__'\nI1\nstb."
        with pytest.raises(ValueError, match="pickle"):
            pickles.load(slots)
        assert all(vars(stand_in).keys() == attributes[stand_in] for stand_in in attributes)
    assert names == pickles._STAND_INS


@pytest.fixture
def _little_memory():
    """Another 500 MB of address space, and no more."""
    resource = pytest.importorskip("resource")
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 500_000_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def length(opcode: bytes, size: int, count: int = 4) -> bytes:
    return opcode + size.to_bytes(count, "little")


GREEDY = {
    "memo of 2 ** 28": b"N" + length(b"r", 2**28) + b"0.",
    "memo of 2 ** 32": b"N" + length(b"r", 2**32 - 1) + b".",
    "memo in digits": b"Np268435455\n.",
    "bytes": length(b"B", 2**32 - 1) + b".",
    "string": length(b"T", 2**31 - 1) + b".",
    "text": length(b"X", 2**32 - 1) + b".",
    "integer": length(b"\x8b", 2**31 - 1) + b".",
    "long bytes": b"\x80\x04" + length(b"\x8e", 2**32, 8) + b".",
    "long text": b"\x80\x04" + length(b"\x8d", 2**32, 8) + b".",
    "array of bytes": b"\x80\x05" + length(b"\x96", 2**32, 8) + b".",
    "frame": b"\x80\x04" + length(b"\x95", 2**32, 8) + b".",
}


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux to limit memory")
@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("content", GREEDY.values(), ids=GREEDY)
def test_a_few_bytes_cannot_ask_for_gigabytes(content):
    with pytest.raises(ValueError, match="pickle") as refusal:
        pickles.load(content)
    assert "more memory" not in str(refusal.value)  # refused before it was asked for


def test_shared_lists_are_visited_once():
    nested = []
    for _ in range(60):  # 2 ** 60 paths
        nested = [nested, nested]
    loaded = pickles.load(pickletools.optimize(pickle.dumps(nested, 2)))
    assert loaded[0] is loaded[1]


def nested(levels: int) -> bytes:
    """A list of two lists, which are the same list of two lists, and so on: few bytes, a gigantic text."""
    deeper = b"".join(b"(lg%d\nag%d\nap%d\n0" % (n, n, n + 1) for n in range(1, levels))
    return b"(lp1\n0" + deeper + b"g%d\n" % levels


@pytest.mark.parametrize(
    "content",
    [
        ARRAY + b"(I1\n(" + nested(60) + b"t" + BYTES + b"I00\nS'abc'\ntb.",
        ARRAY + b"(I1\n(I3\ntcnumpy\ndtype\n(" + nested(60) + b"I0\nI1\ntRI00\nS'abc'\ntb.",
        ARRAY
        + b"(I1\n("
        + length(b"\x8b", 100_000)
        + b"\x01" * 100_000
        + b"p1\n"
        + b"g1\n" * 50_000
        + b"t"
        + BYTES
        + b"I00\nS'abc'\ntb.",
    ],
    ids=["shape", "type", "product"],
)
def test_what_an_array_says_of_itself_stays_small(content):
    with pytest.raises(ValueError, match=r"no pickle of plain data \((an array with sizes|sequence item)"):
        pickles.load(content)


def test_bytes_that_are_encoded_often_are_there_once():
    calls = b"c_codecs\nencode\np1\n0(Vabc\nVlatin1\ntp2\n0(" + b"g1\ng2\nR" * 3 + b"t."
    first, second, third = pickles.load(calls)
    assert first == b"abc"
    assert first is second is third
