"""What Channels promises, compaction delivers, to the parameter: on the parts that timm and others have."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, size
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import fadeout
from fadeout import Channels
from fadeout.methods.magnitude import one_shot
from fadeout.torch_bridge.parameters import has_two_dimensions

IMAGES, WORDS = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 16)


class BatchNormAct(nn.BatchNorm2d):
    """A batch-norm with its activation inside, as timm's."""

    def __init__(self, channels: int):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        training = self.training or self.running_mean is None
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum, self.eps
        )
        return self.act(self.drop(x))


class SameConv(nn.Conv2d):
    """Pads for itself, as convolutions that came from TensorFlow do."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride, 0, 1, self.groups)


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1, 1) < 0.9) if self.training else x


class Block(nn.Module):
    """A residual block, as in timm's ResNet and EfficientNet."""

    def __init__(self, width: int):
        super().__init__()
        self.a, self.norm_a = SameConv(width, 2 * width, 2, bias=False), BatchNormAct(2 * width)
        self.deep, self.norm = SameConv(2 * width, 2 * width, 2, groups=2 * width), BatchNormAct(2 * width)
        self.b, self.norm_b = conv(2 * width, width, bias=False), nn.BatchNorm2d(width)
        self.drop_path = DropPath()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.deep(self.norm_a(self.a(x))))
        return F.relu(x + self.drop_path(self.norm_b(self.b(y))))


class Fused(nn.Module):
    """Queries, keys and values of one projection, as in timm."""

    def __init__(self, width: int = 16, heads: int = 4):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        return self.proj(self.mix(*qkv.unbind(0)).transpose(1, 2).reshape(b, n, c))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class WrittenOut(Fused):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
        return scores.softmax(dim=-1) @ v


class Grouped(nn.Module):
    """Two queries share a head of keys and values, as in Llama; keys go through a rotation."""

    def __init__(self, width: int = 16, heads: int = 4, shared: int = 2, repeat: bool = False):
        super().__init__()
        self.head_dim, self.shared, self.repeat = width // heads, shared, repeat
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // shared, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[:-1]
        q, k, v = (one(x).view(*shape, -1, self.head_dim).transpose(1, 2) for one in (self.q, self.k, self.v))
        half = k.shape[-1] // 2
        k = k * 0.5 + torch.cat((-k[..., half:], k[..., :half]), dim=-1)
        if self.repeat:
            k, v = self.repeated(k), self.repeated(v)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=not self.repeat)
        return self.o(mixed.transpose(1, 2).contiguous().reshape(*shape, -1))

    def repeated(self, x: Tensor) -> Tensor:
        b, heads, n, size = x.shape
        return x[:, :, None].expand(b, heads, self.shared, n, size).reshape(b, heads * self.shared, n, size)


class Gated(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.up(x).chunk(2, dim=-1)
        return self.down(x * F.gelu(gate))


class Conformer(nn.Module):
    """A gate, a depthwise convolution and a norm, which says what goes; and a gate after a norm."""

    def __init__(self, gate: nn.Module | None = None):
        super().__init__()
        self.gate = gate or nn.GLU(dim=1)  # twice: it has other channels each time
        self.first, self.norm = conv(3, 16), nn.BatchNorm2d(16)
        self.up, self.deep, self.last = conv(8, 24), conv(12, 12, 3, groups=12), conv(12, 2)
        self.middle = nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(self.norm(self.first(x)))
        return self.last(F.silu(self.middle(self.deep(self.gate(self.up(x))))))


class ByHand(nn.Module):
    """A gated linear unit, written out."""

    def __init__(self, activation: Any):
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x, gate = x.chunk(2, dim=1)
        return x * self.activation(gate)


def words(attention: nn.Module) -> nn.Module:
    def forward(m, x):
        x = x + m.attention(m.norm(x))
        return m.head(x + m.gated(x))

    layers = {"attention": attention, "norm": nn.LayerNorm(16), "gated": Gated(), "head": nn.Linear(16, 3)}
    return Net(forward, **layers)


class Siamese(nn.Sequential):
    """One network for two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x) - super().forward(y)


def resized(m, x):
    """Makes plain numbers of sizes, so that a graph would have those of the example for ever."""
    x = F.relu(m.a(x))
    return m.c(F.interpolate(x + F.relu(m.b(x)), size=[int(1.5 * side) for side in x.shape[2:]]))


NETWORKS = {
    "residual blocks": (lambda: nn.Sequential(conv(3, 8), Block(8), Block(8), conv(8, 2)), IMAGES),
    "instance-norm": (
        lambda: nn.Sequential(conv(3, 8), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), conv(8, 2)),
        IMAGES,
    ),
    "fused": (lambda: words(Fused()), WORDS),
    "written out": (lambda: words(WrittenOut()), WORDS),
    "grouped": (lambda: words(Grouped()), WORDS),
    "repeated": (lambda: words(Grouped(repeat=True)), WORDS),
    "encoder layer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), nn.Linear(16, 3)),
        WORDS,
    ),
    "transformer": (
        lambda: nn.Transformer(16, 4, 1, 1, 32, batch_first=True),
        (WORDS, torch.randn(2, 4, 16)),
    ),
    "siamese": (lambda: Siamese(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 2)), (IMAGES, -IMAGES)),
    "gated": (
        lambda: nn.Sequential(nn.Linear(16, 24), nn.GLU(), nn.Linear(12, 20), nn.GLU(), nn.Linear(10, 3)),
        WORDS,
    ),
    "conformer": (Conformer, IMAGES),
    "by hand": (lambda: Conformer(ByHand(torch.sigmoid)), IMAGES),
    "by hand, swish": (lambda: Conformer(ByHand(F.silu)), IMAGES),
    "resized": (lambda: Net(resized, a=conv(3, 8), b=conv(8, 8), c=conv(8, 2)), IMAGES),
}


@pytest.mark.filterwarnings("ignore:compact.. keeps")  # more would go for inference
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_promised_is_delivered(name):
    build, example = NETWORKS[name]
    model = build()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)
    structure = Channels(example, by="norm")
    bound = structure.bind(model, None, has_two_dimensions)
    masks = one_shot(model, 0.3, structure=structure)
    alive = {}
    for layer in bound.layers:
        stays = masks[layer.fading[0]].unsqueeze(-1).flatten(1).any(1)
        rows = layer.rows.get(layer.fading[0])
        alive[layer.name] = (stays if rows is None else stays[torch.from_numpy(rows)].any(1)).numpy()
    small = fadeout.compact(model, example)
    assert size(small) == bound.cost.left(alive) <= 0.7 * size(model)
    args = example if isinstance(example, tuple) else (example,)
    torch.testing.assert_close(small.eval()(*args), model.eval()(*args), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fused", "written out", "grouped", "repeated", "encoder layer"])
def test_heads_are_candidates(name):
    build, example = NETWORKS[name]
    bound = Channels(example, by="norm").bind(build(), None, has_two_dimensions)
    heads = [layer for layer in bound.layers if layer.rows]
    assert [layer.width for layer in heads] == [2 if name in ("grouped", "repeated") else 4]


@pytest.mark.parametrize(
    ("name", "by", "found"),
    [
        ("gated", "norm", {"1": ("0.weight", 12), "3": ("2.weight", 10)}),
        ("conformer", "norm", {"gate (gate)": ("norm.weight", 8), "middle": ("middle.weight", 12)}),
        ("conformer", "scale", {"gate (gate)": ("norm.weight", 8), "middle": ("middle.weight", 12)}),
        ("by hand", "norm", {"mul": ("norm.weight", 8), "middle": ("middle.weight", 12)}),
        ("by hand", "scale", {"mul": ("norm.weight", 8), "middle": ("middle.weight", 12)}),
        ("by hand, swish", "norm", {"norm": ("norm.weight", 16), "middle": ("middle.weight", 12)}),
    ],
)
def test_pairs_of_gated_linear_units_are_candidates(name, by, found):
    build, example = NETWORKS[name]
    bound = Channels(example, by=by).bind(build(), None, has_two_dimensions)
    assert {layer.name: (layer.fading[0], layer.width) for layer in bound.layers} == found
    assert bound.cost.dependencies is not None


def test_the_number_of_heads_that_a_module_keeps_is_changed():
    """Where nothing but the attribute must change, the user's own forward stays."""

    class Own(Fused):
        def forward(self, x: Tensor) -> Tensor:
            b, n, _ = x.shape
            qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
            return self.proj(self.mix(*qkv.unbind(0)).transpose(1, 2).flatten(2))

    model = words(Own())
    with torch.no_grad():
        for first in (0, 16, 32):  # queries, keys and values of the first two heads
            model.attention.qkv.weight[first : first + 8] = 0
            model.attention.qkv.bias[first : first + 8] = 0
    small = fadeout.compact(model, WORDS)
    assert isinstance(small.attention, Own)
    assert (small.attention.num_heads, small.attention.proj.in_features) == (2, 8)
    torch.testing.assert_close(small(WORDS), model(WORDS), rtol=1e-3, atol=1e-5)


def test_a_batch_norm_on_the_raw_inputs_is_left_alone():
    """It was a KeyError: '0'."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    bound = Channels(torch.randn(3, 4)).bind(model, None, has_two_dimensions)
    assert [layer.name for layer in bound.layers] == ["2"]


@pytest.mark.parametrize(
    "kind", [lambda: Standardised(3, 4, 1), lambda: nn.utils.parametrizations.weight_norm(conv(3, 4))]
)
def test_a_batch_norm_whose_input_is_not_followed_is_left_alone(kind):
    """The same behind a convolution without a rule, and behind a weight_norm."""
    model = nn.Sequential(kind(), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 8), nn.BatchNorm2d(8), conv(8, 2))
    bound = Channels(IMAGES).bind(model, None, has_two_dimensions)
    assert [layer.name for layer in bound.layers] == ["4"]


class Standardised(nn.Conv2d):
    """A convolution with standardised weights, as in timm's normaliser-free networks."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_what_stopped_the_channels_is_named():
    model = nn.Sequential(conv(3, 4), nn.LSTM(8, 8, proj_size=4), Net(lambda m, x: torch.fft.rfft(x[0]).real))
    with pytest.raises(ValueError, match=r"none of its layers .*: LSTM \(at 1\), fft_rfft\(\)") as caught:
        Channels(torch.randn(2, 3, 8, 8)[0], by="norm").bind(model, None, has_two_dimensions)
    assert "by='norm'" not in str(caught.value)


def test_standardised_weights_keep_their_channels():
    model = nn.Sequential(Standardised(3, 4, 1), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
    bound = Channels(IMAGES, by="norm").bind(model, None, has_two_dimensions)
    assert [layer.name for layer in bound.layers] == ["2"]


def test_standardised_weights_are_refused_by_name():
    model = nn.Sequential(Standardised(3, 4, 1), nn.ReLU(), Standardised(4, 2, 1))
    with pytest.raises(ValueError, match=r"no channel .* with all their channels: Standardised \(at 0\)"):
        Channels(IMAGES, by="norm").bind(model, None, has_two_dimensions)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own: there is a newer one
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("computed", "how", "fold"),
    [
        (old_weight_norm, "Weight_norm", "torch.nn.utils.remove_weight_norm(module, 'weight')"),
        (parametrizations.weight_norm, "WeightNorm", "remove_parametrizations(module, 'weight')"),
        (parametrizations.spectral_norm, "SpectralNorm", "remove_parametrizations(module, 'weight')"),
        (lambda layer: prune.identity(layer, "weight"), "A mask of torch", "prune.remove(module, 'weight')"),
    ],
    ids=["old weight_norm", "weight_norm", "spectral_norm", "mask"],
)
@pytest.mark.parametrize("by", ["norm", None])
def test_computed_weights_are_refused_with_advice(computed, how, fold, by):
    """A weight_norm has no zeros where the weights that it is computed from have them."""
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
    computed(model[0])
    computed(model[3])
    with pytest.raises(ValueError, match="no channel of this network can go") as caught:
        Channels(IMAGES, by=by).bind(model, None, has_two_dimensions)
    assert f"{how}" in str(caught.value)
    assert "computes the weight of '0' (and those of 1 other layers)" in str(caught.value)
    assert fold in str(caught.value)


def test_a_computed_weight_among_others_keeps_its_channels_and_is_named():
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
    parametrizations.weight_norm(model[6])
    bound = Channels(IMAGES, by="norm").bind(model, None, has_two_dimensions)
    assert [layer.name for layer in bound.layers] == ["0", "2"]
    assert "(1 more keep all: WeightNorm computes their weights)" in bound.in_words()


@pytest.mark.parametrize(
    ("in_training", "warns"),
    [
        (lambda m, x: (x, m.helper(x)), True),
        (lambda m, x: x * m.table, True),
        (lambda m, x: x + torch.randn_like(x), False),
        (lambda m, x: x.clone(), False),
    ],
)
def test_what_only_goes_without_training_is_said_at_the_start(in_training, warns):
    """A head for training, and a table, read all channels; noise is as wide as what it is added to."""

    def forward(m, x):
        x = m.norm(m.a(m.first(x))).relu()
        if not m.training:
            return m.b(x)
        x = in_training(m, x)
        return (m.b(x[0]), x[1]) if isinstance(x, tuple) else m.b(x)

    convolutions = {"first": conv(3, 3), "a": conv(3, 8), "b": conv(8, 2), "helper": conv(8, 2)}
    model = Net(forward, **convolutions, norm=nn.BatchNorm2d(8))
    model.register_buffer("table", torch.rand(8, 1, 1))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Channels(IMAGES).bind(model, None, has_two_dimensions)
        Channels({"x": IMAGES}, leaves=[model.first]).bind(model, None, has_two_dimensions)
    assert ["for_inference=True) takes" in str(one.message) for one in caught] == [True, True] * warns
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_forward_of_two_ways_is_counted_as_it_stands():
    """Where training is another way altogether, nothing is promised that needs another forward."""

    def forward(m, x):
        y = F.relu(m.norm(m.a(x)) + m.b(x)) if m.training else F.relu(m.b(x) + m.norm(m.a(x)))
        return m.c(y)

    layers = {"a": conv(3, 8, bias=False), "norm": nn.BatchNorm2d(8), "b": conv(3, 8), "c": conv(8, 2)}
    model = Net(forward, **layers)
    structure = Channels(IMAGES, by="norm", candidates="all")
    bound = structure.bind(model, None, has_two_dimensions)
    most = 1 - bound.cost.at_most_left(1) / bound.cost.total
    one_shot(model, most * 0.8, structure=structure)
    with pytest.warns(UserWarning, match="pass for_inference=True"):
        small = fadeout.compact(model, IMAGES)
    assert type(small) is Net
    assert size(small) <= (1 - most * 0.8) * size(model)
