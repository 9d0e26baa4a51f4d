"""Attention of our own: whole, it is ``nn.MultiheadAttention``, however it is called."""

import copy

import pytest
import torch
from torch import nn

from fadeout.graph.heads import Heads

KINDS = {
    "packed": {},
    "without biases": {"bias": False},
    "other widths": {"kdim": 3, "vdim": 5},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True},
}
LONG, SHORT, BATCH = 5, 4, 2


def pair(kind="packed", **arguments):
    attention = nn.MultiheadAttention(6, 3, **KINDS[kind], **arguments).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()  # biases too, which start at zero
    return attention, Heads(copy.deepcopy(attention))


def sides(attention, batch_first):
    widths = attention.embed_dim, attention.kdim, attention.vdim
    found = [torch.randn(BATCH, n, w).double() for n, w in zip((SHORT, LONG, LONG), widths, strict=True)]
    return found if batch_first else [one.transpose(0, 1) for one in found]


def same(attention, heads, *args, **kwargs):
    mine, theirs = heads(*args, **kwargs), attention(*args, **kwargs)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_it_is_the_same(kind, batch_first, training, average):
    attention, heads = (one.train(training) for one in pair(kind, batch_first=batch_first))
    given = sides(attention, batch_first)
    same(attention, heads, *given)
    same(attention, heads, *given, need_weights=False)
    same(attention, heads, *given, average_attn_weights=average)
    unbatched = [one[0] if batch_first else one[:, 0] for one in given]
    same(attention, heads, *unbatched, average_attn_weights=average)
    same(attention, heads, *unbatched, need_weights=False)


@pytest.mark.parametrize("kind", ["packed", "more keys"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks(kind, need_weights):
    attention, heads = pair(kind, batch_first=True)
    given, options = sides(attention, True), {"need_weights": need_weights}
    hidden = torch.tensor([[False] * 5, [False, True, False, True, False]])
    later = torch.ones(SHORT, LONG, dtype=torch.bool).triu(1)
    same(attention, heads, *given, key_padding_mask=hidden, **options)
    same(attention, heads, *given, attn_mask=later, **options)
    same(attention, heads, *given, hidden, need_weights, later)
    same(attention, heads, *given, attn_mask=torch.randn(SHORT, LONG).double(), **options)
    same(attention, heads, *given, attn_mask=torch.randn(3 * BATCH, SHORT, LONG).double(), **options)
    added = torch.randn(BATCH, LONG).double()
    same(attention, heads, *given, key_padding_mask=added, attn_mask=torch.randn(SHORT, LONG).double())
    one = [side[1] for side in given]
    same(attention, heads, *one, key_padding_mask=hidden[1], attn_mask=later, **options)


def test_the_causal_hint_comes_with_its_mask():
    attention, heads = pair(batch_first=True)
    x = torch.randn(BATCH, LONG, 6).double()
    mask = nn.Transformer.generate_square_subsequent_mask(LONG).double()
    same(attention, heads, x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    same(attention, heads, x, x, x, attn_mask=mask, is_causal=True)
    with pytest.raises(RuntimeError, match="must be given too"):
        heads(x, x, x, is_causal=True)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_acts_in_training_mode_alone(need_weights):
    _, heads = pair(dropout=0.5)
    x = torch.randn(LONG, BATCH, 6).double()
    first, second = (heads(x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (heads.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_mode_are_the_same(kind):
    attention, heads = pair(kind)
    assert heads.state_dict().keys() == attention.state_dict().keys()
    assert heads.training
    assert not Heads(attention.eval()).training
