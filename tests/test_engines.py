"""What is timed where, and what was measured before."""

import json
import warnings

import pytest
import torch
from support.helpers import conv
from torch import nn

from fadeout import engines
from fadeout._timing import Timing
from fadeout.engines import describe_machine, time_layer, time_networks, timings_of
from fadeout.graph.example import Example

CPU = torch.device("cpu")
LAYERS = {
    "convolution": (lambda: conv(3, 4, 3, padding=(1, 0), stride=2), (2, 3, 6, 6)),
    "same": (lambda: conv(3, 4, (3, 5), padding="same", bias=False), (2, 3, 6, 6)),
    "grouped": (lambda: conv(4, 4, 3, groups=2, dilation=2), (2, 4, 6, 6)),
    "one dimension": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (2, 3, 6, 6)),
    "linear": (lambda: nn.Linear(3, 4), (2, 5, 3)),
    "without bias": (lambda: nn.Linear(3, 4, bias=False), (2, 3)),
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", LAYERS)
def test_the_onnx_model_of_a_layer_is_the_layer(name):
    build, shape = LAYERS[name]
    layer, given = build(), torch.randn(shape)
    session = engines.export.open_session(engines._onnx_of(layer, given))
    (found,) = session.run(None, {"given": given.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(given).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["pytorch", "channels_last", "onnxruntime"])
def test_layers_take_time_in_every_engine(engine):
    assert 0 < time_layer(conv(3, 4, 3), torch.randn(1, 3, 6, 6), engine) < 1


@pytest.mark.parametrize("engine", ["pytorch", "channels_last"])
def test_networks_take_time_and_are_left_as_they_are(engine):
    model = nn.Sequential(conv(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = time_networks({"it": model}, Example((torch.randn(2, 3, 6, 6),)), engine)
    assert 0 < found["it"] < 1
    assert model.training
    assert next(model.parameters()).is_contiguous()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Seen(nn.Module):
    """Notes how its input lies in memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.layouts = nn.Conv2d(3, 2, 1), []

    def __deepcopy__(self, memo):
        return self  # so that the test sees what the copy sees

    def forward(self, x):
        self.layouts.append(x.is_contiguous(memory_format=torch.channels_last))
        return self.conv(x)


@pytest.mark.parametrize("engine", ["pytorch", "channels_last"])
def test_images_lie_as_the_engine_wants_them(engine):
    network = Seen()
    time_networks({"": network}, Example((torch.randn(2, 3, 4, 4),)), engine)
    assert set(network.layouts) == {engine == "channels_last"}


def test_networks_with_keyword_arguments_in_onnxruntime():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    example = Example.of({"b": torch.ones(2, 3), "a": torch.ones(2, 3)})
    assert time_networks({"sum": Sum()}, example, "onnxruntime")["sum"] > 0


def test_a_busy_machine_is_said_to_be_one(monkeypatch):
    model, example = nn.Linear(2, 2), Example((torch.zeros(1, 2),))
    monkeypatch.setattr(engines, "race", lambda calls, *_, **__: dict.fromkeys(calls, Timing(1.0, 2.0, 3.0)))
    with pytest.warns(UserWarning, match="too busy to measure.* spread by 100%"):
        assert time_networks({"it": model}, example, "pytorch") == {"it": 2.0}
    monkeypatch.setattr(engines, "race", lambda calls, *_, **__: dict.fromkeys(calls, Timing(2.0, 2.0, 2.1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        time_networks({"it": model}, example, "pytorch")


def test_what_was_measured_is_not_measured_again():
    with timings_of("pytorch", CPU) as timings:
        assert timings.measure("a thing", lambda: 2.0) == 2.0
    with timings_of("pytorch", CPU) as timings:
        assert timings.measure("a thing", lambda: 3.0) == 2.0
        assert timings == {"a thing": 2.0}


def test_what_two_measure_at_a_time_is_kept_of_both():
    with timings_of("pytorch", CPU) as timings:
        timings.update({"a thing": 2.0})
        with timings_of("pytorch", CPU) as others:
            others.update({"another": 3.0})
    with timings_of("pytorch", CPU) as timings:
        assert timings == {"a thing": 2.0, "another": 3.0}


def test_what_was_measured_before_an_error_is_kept():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), timings_of("pytorch", CPU) as timings:  # noqa: PT012
        timings.update({"a thing": 2.0})
        timings.measure("another", stop)
    with timings_of("pytorch", CPU) as timings:
        assert timings["a thing"] == 2.0


@pytest.mark.parametrize(
    "other", [{"processor": "another"}, {"torch": "1.0"}, {"version": "1.0"}, {"threads": 64}]
)
def test_what_another_machine_has_measured_is_not_used(monkeypatch, other):
    """Neither from its own file, nor where its file lies in the place of this machine's."""
    with timings_of("pytorch", CPU) as timings:
        timings.update({"a thing": 2.0})
    here = describe_machine("pytorch", CPU)
    monkeypatch.setattr(engines, "describe_machine", lambda engine, device: {**here, **other})
    with timings_of("pytorch", CPU) as there:
        assert "a thing" not in there
        assert there.path != timings.path
    there.path.write_bytes(timings.path.read_bytes())
    with timings_of("pytorch", CPU) as there:
        assert "a thing" not in there


def test_engines_have_files_of_their_own():
    descriptions = [describe_machine(engine, CPU) for engine in ("pytorch", "channels_last", "onnxruntime")]
    assert len({engines.Timings(each).path for each in descriptions}) == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", '{"machine": 1}', "[" * 100_000, '{"machine": null, "seconds": {"a thing": 1}}'],
)
def test_a_damaged_file_counts_as_none(content):
    path = engines.Timings(describe_machine("pytorch", CPU)).path
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with timings_of("pytorch", CPU) as timings:
        assert not timings
        timings.update({"a thing": 2.0})
    assert json.loads(path.read_text())["seconds"] == {"a thing": 2.0}


def test_numbers_that_are_none_count_as_none():
    found = engines.Timings(describe_machine("pytorch", CPU))
    found.path.parent.mkdir(parents=True)
    found.path.write_text(json.dumps({"machine": found.machine, "seconds": {"a": 1.0, "b": "long"}}))
    with timings_of("pytorch", CPU) as timings:
        assert not timings


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with timings_of("pytorch", CPU) as timings:
        timings.update({"a thing": 2.0})
    assert timings["a thing"] == 2.0


def test_only_the_kernels_of_a_layer_count_not_what_a_run_takes_besides(monkeypatch, tmp_path):
    durations = {"model_run": 16, "Conv": 5, "ReorderOutput": 3}
    events = [
        {
            "name": name if name == "model_run" else f"{name}_kernel_time",
            "dur": dur,
            "args": {"op_name": name},
        }
        for name, dur in durations.items()
    ]

    class Session:
        def run(self, names, feed):
            return []

        def end_profiling(self):
            (tmp_path / "profile.json").write_text(json.dumps(events))
            return str(tmp_path / "profile.json")

    monkeypatch.setattr(engines.export, "open_session", lambda model, threads, profile: Session())
    monkeypatch.setattr(engines, "_alone", lambda call, device: 32e-6)
    seconds = engines.time_layer(nn.Conv2d(1, 4, 1), torch.zeros(1, 1, 2, 2), "onnxruntime")
    assert seconds == pytest.approx(10e-6)
