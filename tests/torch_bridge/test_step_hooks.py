"""The optimizer's own step hooks, under all that training loops do."""

import copy
import functools
import inspect
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fadeout import Decay, Elements, Latent, Progressive, SelectiveWeightDecay, criteria, schedules
from fadeout.torch_bridge.step_hooks import Rounds, StepHooks

GROWING = schedules.exponential(1.0, 1e3)
MU = 5e-4
FADES = {
    "progressive": Progressive(),
    "latent": Latent(),
    "gradient": Decay(GROWING, weight_decay=MU),
    "implicit": Decay(GROWING, weight_decay=MU, mode="implicit"),
}
EVERY_FADE = pytest.mark.parametrize("fade", FADES)
MODES = pytest.mark.parametrize("mode", ["gradient", "implicit"])


@pytest.fixture
def prune(make_task):
    """A task, its optimizer and its pruner: ``prune("mlp", Adam, "implicit", steps, ...)``."""

    def build(kind, optimizer, fade="progressive", steps=12, *, dtype=torch.float64, **kwargs):
        task = make_task(kind, dtype)
        optimizer = optimizer(task.model)
        fade = FADES.get(fade, fade)
        pruner = SelectiveWeightDecay(
            task.model, optimizer, **{"sparsity": 0.75, "steps": steps, "fade": fade, **kwargs}
        )
        return task, optimizer, pruner

    return build


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02)


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield torch.compile
    torch._dynamo.reset()


# Rounds -----------------------------------------------------------------------------------------------


class Recorder(Rounds):
    def __init__(self, *optimizers, **options):
        self.events, self.names = [], dict(zip(map(id, optimizers), "ab", strict=False))
        self.hooks = StepHooks(optimizers, self, **options)

    def begin(self):
        self.events.append("begin")

    def join(self, optimizer, *_):
        self.events.append(self.names[id(optimizer)])

    def between(self):
        self.events.append("between")

    def onward(self):
        self.events.append("onward")

    def end(self):
        self.events.append("end")


@pytest.fixture
def pair(bare):
    model = bare(a=[[1.0]], b=[[1.0]])
    return [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]


def test_a_step_is_a_round(pair):
    record = Recorder(pair[0])
    pair[0].step()
    assert record.events == ["begin", "a", "end"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_round_ends_after_the_last_optimizer_in_any_order(pair, order):
    record = Recorder(*pair)
    for i in order:
        pair[i].step()
    first, second = ("ab"[i] for i in order)
    assert record.events == ["begin", first, "between", "onward", second, "end"]


def test_the_order_may_change_from_round_to_round(bare):
    model = bare(v=[[1.0]], w=[[1.0]])
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    pruner = SelectiveWeightDecay(model, optimizers, sparsity=0.5, steps=10)
    for step in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 3 > 0)
        (model.v + model.w).square().sum().backward()
        for optimizer in reversed(optimizers) if step % 2 else optimizers:
            optimizer.step()
        assert pruner.steps_taken == step + 1


def test_an_optimizer_that_steps_again_begins_a_new_round(pair):
    record = Recorder(*pair)
    for i in (0, 0, 1):
        pair[i].step()
    assert record.events == ["begin", "a", "between", "begin", "a", "between", "onward", "b", "end"]


def test_a_step_that_failed_leaves_nothing_for_the_next(bare):
    """As when it is interrupted in a notebook: the next step begins anew, with its own scores."""
    model = bare(w=[[1.0]])
    optimizer = torch.optim.Adam(model.parameters())
    record = Recorder(optimizer)
    model.w.grad = torch.ones(1, 1).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    model.w.grad = None
    optimizer.step()
    assert record.events == ["begin", "a", "begin", "a", "end"]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("closure", [False, True])
def test_a_step_within_a_step_is_one(bare, ahead, closure):
    """An optimizer of one's own that calls that of its base class, whose step torch has hooked as well."""

    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            return super().step(closure)

    model = bare(w=[[1.0]])
    torch.optim.SGD(model.parameters())  # from the first one on, the class is hooked
    record = Recorder(optimizer := Own(model.parameters()), ahead=ahead)
    evaluated = []
    for _ in range(2):
        optimizer.step(lambda: evaluated.append(1)) if closure else optimizer.step()
    assert record.events == (["begin", "a", "end"] if ahead else ["end"]) * 2
    assert len(evaluated) == 2 * closure


def test_a_step_within_one_that_has_no_hooks_counts(bare):
    """As when somebody has put a function of his own into an optimizer."""
    model = bare(w=[[1.0]])
    record = Recorder(optimizer := torch.optim.SGD(model.parameters()))

    def step(self):
        type(self).step(self)

    optimizer.step = functools.partial(step, optimizer)
    optimizer.step()
    assert record.events == ["begin", "a", "end"]


class Lookahead(torch.optim.Optimizer):
    """As timm's, which wraps another optimizer and does not call ``super().__init__()``."""

    def __init__(self, base):
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.base, self.param_groups, self.state = base, base.param_groups, base.state

    def step(self, closure=None):
        return self.base.step(closure)


def test_an_optimizer_that_torch_has_not_hooked_counts(bare):
    model = bare(w=[[1.0]])
    record = Recorder(optimizer := Lookahead(torch.optim.SGD(model.parameters())))
    optimizer.step()
    optimizer.step()
    assert record.events == ["begin", "a", "end"] * 2


def test_an_optimizer_that_is_listed_twice_steps_once_or_is_refused(make_task, train):
    """What must not happen is a round that waits for ever for a second optimizer."""
    task = make_task("mlp")
    optimizer = sgd(task.model)
    try:
        pruner = SelectiveWeightDecay(task.model, [optimizer, optimizer], sparsity=0.5, steps=4)
    except ValueError:
        return
    train(task, optimizer, 4)
    assert pruner.progress == 1.0


def test_a_closure_joins_at_every_evaluation(pair):
    record = Recorder(pair[0])
    seen = []
    pair[0].step(lambda: seen.append("closure"))
    pair[0].step(closure=lambda: seen.append("keyword"))
    assert record.events == ["begin", "a", "end"] * 2
    assert seen == ["closure", "keyword"]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_a_closure_evaluated_often_begins_once(bare):
    model = bare(w=[[1.0, 5.0]])
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    record = Recorder(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = model.w.pow(4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert record.events == ["begin", "a", "a", "a", "end"]


def test_removed_hooks_are_gone(pair, hooks_on):
    record = Recorder(*pair)
    assert all(hooks_on(optimizer) == 2 for optimizer in pair)
    record.hooks.remove()
    record.hooks.remove()
    pair[0].step()
    assert record.events == []
    assert all(hooks_on(optimizer) == 0 for optimizer in pair)


@pytest.mark.parametrize(("ahead", "events"), [(True, ["begin", "a", "end"]), (False, ["end"])])
def test_where_nothing_is_done_ahead_one_optimizer_has_one_hook(pair, hooks_on, ahead, events):
    record = Recorder(pair[0], ahead=ahead)
    assert hooks_on(pair[0]) == 1 + ahead
    pair[0].step()
    assert record.events == events


# Accumulation and clipping ----------------------------------------------------------------------------


@EVERY_FADE
def test_gradient_accumulation(prune, train, close, fade):
    """Four quarters of a batch and one step are the whole batch and one step."""
    whole, optimizer, _ = prune("mlp", sgd, fade)
    train(whole, optimizer, 12)

    parts, optimizer, pruner = prune("mlp", sgd, fade)
    for step in range(12):
        inputs, wanted = parts.batch(step)
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            ((parts.model(inputs[rows]) - wanted[rows]).square().mean() / 4).backward()
        assert pruner.progress == step / 12
        optimizer.step()
        optimizer.zero_grad()
    close(parts.model, whole.model)


def test_the_penalty_joins_after_clipping(bare):
    """Gradient (3, 4) clipped to a norm of 1 is (0.6, 0.8); a mu = 2 adds 2 * 1 to the lower weight only."""
    model = bare(w=[[1.0, -2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=Decay(4.0, weight_decay=0.5))
    model.w.grad = torch.tensor([[3.0, 4.0]])
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert model.w.flatten().tolist() == pytest.approx([1 - 0.1 * 2.6, -2 - 0.1 * 0.8])


def test_a_missing_gradient_becomes_the_penalty(bare, push):
    model = bare(w=[[1.0, -2.0]], other=[[5.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=2 / 3, steps=9, fade=Decay(4.0, weight_decay=0.5))
    push(model, optimizer)
    assert model.w.flatten().tolist() == pytest.approx([0.8, -1.6])
    assert model.other.item() == 5.0


# GradScaler -------------------------------------------------------------------------------------------

SCALED = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.02}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}


@pytest.fixture(params=SCALED)
def scaled(request, prune):
    """Build a task in float32 with one of the optimizers that can be fused."""
    kind, options = SCALED[request.param]
    return lambda fused, fade, **kwargs: prune(
        "mlp",
        lambda m: kind(m.parameters(), fused=fused, **options),
        fade,
        dtype=torch.float32,
        criterion=criteria.moving_average(criteria.taylor),  # a state that a skipped step must not touch
        **kwargs,
    )


@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled first"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@EVERY_FADE
def test_scaled_gradients_change_nothing(scaled, train, same_bits, fade, fused, unscale):
    """The scale is a power of two, so the weights are equal to the last bit."""
    plain, optimizer, _ = scaled(fused, fade)
    train(plain, optimizer, 12)

    task, optimizer, pruner = scaled(fused, fade)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        optimizer.zero_grad()
        scaler.scale(task.loss(step)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    same_bits(task.model, plain.model)
    assert pruner.progress == 1.0


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@EVERY_FADE
def test_a_step_skipped_for_infinities_neither_fades_nor_counts(
    scaled, train, same_bits, snapshot, fade, fused
):
    """Training with a skipped step 5 is training without any step 5."""
    plain, optimizer, _ = scaled(fused, fade, steps=11)
    train(plain, optimizer, 5)
    train(plain, optimizer, 12, start=6)

    task, optimizer, pruner = scaled(fused, fade, steps=11)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        optimizer.zero_grad()
        scaler.scale(task.loss(step)).backward()
        before = snapshot(task.model)
        if step == 5:
            task.model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        if step == 5:
            same_bits(snapshot(task.model), before)
            assert pruner.progress == 5 / 11
    assert scaler.get_scale() == 512.0
    same_bits(task.model, plain.model)


@pytest.mark.parametrize("when", [2, 9], ids=["latent", "settled"])
@pytest.mark.parametrize("skipped", [0, 1], ids=["first", "last"])
def test_one_of_two_optimizers_skipped(make_task, skipped, when):
    """The next forward pass runs on a sparse network, and the pruner acts after the last, as before."""
    task = make_task("matrices", torch.float32)
    layers = [task.model[0], task.model[2]]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in layers]
    pruner = SelectiveWeightDecay(
        task.model, optimizers, sparsity=0.75, steps=10, structure=Elements(scope="layer")
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = []
    for step in range(12):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(task.loss(step)).backward()
        if step == when:
            layers[skipped].weight.grad[0, 0] = float("inf")
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        zeros = [int((layer.weight == 0).sum()) for layer in layers]
        if step == when:
            assert all(zeros)
            assert zeros == before or when == 2  # latents may still cross the threshold of before
        before = zeros
        if pruner.progress == 1.0:
            break
    assert pruner.fade == 0.0
    assert sum(int((p == 0).sum()) for p in task.model.parameters()) == round(0.75 * 72)


# torch.compile ----------------------------------------------------------------------------------------


@EVERY_FADE
def test_a_compiled_model(prune, train, close, compiler, fade):
    plain, optimizer, _ = prune("mlp", sgd, fade)
    train(plain, optimizer, 12)

    task, optimizer, pruner = prune("mlp", sgd, fade)
    compiled = compiler(task.model, backend="aot_eager")
    train(task, optimizer, 12, loss=lambda step: task.loss(step, compiled))
    close(task.model, plain.model)
    assert list(pruner.masks()) == ["0.weight", "2.weight"]


@pytest.mark.parametrize(
    ("optimizer", "slack"),
    # Compiled, AdamW corrects its bias in float32, with or without a pruner.
    [(sgd, {}), (adamw, {"rtol": 1e-3, "atol": 1e-4})],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize(
    "fade", ["latent", *(pytest.param(f, marks=pytest.mark.slow) for f in FADES if f != "latent")]
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # in torch's own compiler
def test_a_compiled_step_does_not_recompile(prune, train, close, compiler, fade, optimizer, slack):
    """The hooks stay outside: the graphs are those of the optimizer alone, and as many, step by step."""
    plain, plain_optimizer, _ = prune("mlp", optimizer, fade, steps=15)
    train(plain, plain_optimizer, 15)

    graphs = []
    for attached in (False, True):
        task, stepped, pruner = prune("mlp", optimizer, fade, steps=15)
        if not attached:
            pruner.detach()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = compiler(stepped.step, backend="eager")
        graphs.append([])
        for step in range(15):
            stepped.zero_grad()
            task.loss(step).backward()
            compiled()
            graphs[-1].append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    alone, pruned = graphs
    assert min(alone) > 0
    assert pruned == alone
    assert pruner.progress == 1.0
    close(task.model, plain.model, **slack)


# Parameter groups and learning rates ------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_every_group_has_its_own_rate_and_decay(make_task, train, train_reference, close, mode, kind):
    def build():
        task = make_task("mlp")
        first, second = task.model[0], task.model[2]
        groups = [
            {"params": [first.weight], "lr": 0.05, "weight_decay": 1e-2},
            {"params": [second.weight], "lr": torch.tensor(0.01).double(), "weight_decay": 1e-3},
            {"params": [first.bias, second.bias], "weight_decay": 0.0},
        ]
        return task, kind(groups, lr=0.02, foreach=False)  # a rate that is a tensor wants foreach off

    task, optimizer = build()
    fade = Decay(GROWING, mode=mode)
    SelectiveWeightDecay(task.model, optimizer, sparsity=0.6, steps=20, fade=fade)
    train(task, optimizer, 20)
    other, optimizer = build()
    train_reference(other, optimizer, 20, 0.6, GROWING, mode=mode)
    close(task.model, other.model)


@MODES
@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 5, 0.1),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),  # moves the momentum too
    ],
    ids=["steps", "one cycle"],
)
def test_learning_rate_schedulers(make_task, train, train_reference, close, mode, schedule):
    """The learning rate is that of the step, not of the next one."""
    ends = []
    for reference in (False, True):
        task = make_task("mlp")
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.2, momentum=0.5, weight_decay=1e-3)
        fade = Decay(GROWING, mode=mode)
        if not reference:
            SelectiveWeightDecay(task.model, optimizer, sparsity=0.6, steps=20, fade=fade)
        scheduler = schedule(optimizer)
        after = {"after": lambda step, scheduler=scheduler: scheduler.step()}
        if reference:
            train_reference(task, optimizer, 20, 0.6, GROWING, mode=mode, **after)
        else:
            train(task, optimizer, 20, **after)
        ends.append(task.model)
    close(*ends)


def test_the_figures_follow_the_groups(make_task):
    """What is read between two steps belongs to the step that comes."""
    task = make_task("mlp")
    groups = [{"params": task.model[0].parameters(), "lr": 0.1}, {"params": task.model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.5, weight_decay=0.1)
    fade = Decay(schedules.linear(0.0, 100.0), mode="implicit")
    pruner = SelectiveWeightDecay(task.model, optimizer, sparsity=0.5, steps=10, fade=fade)
    assert pruner.factor_now == 1.0
    optimizer.step()
    assert pruner.progress == 0.1
    assert pruner.factor_now == pytest.approx(1 / (1 + 0.5 * 10 * 0.1))  # the smallest of all groups
    optimizer.param_groups[1]["lr"] = 0.0
    assert pruner.factor_now == pytest.approx(1 / (1 + 0.1 * 10 * 0.1))


# Closures ---------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    "build",
    [
        lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
        lambda ps: torch.optim.LBFGS(ps, lr=0.3, max_iter=4),
        lambda ps: torch.optim.LBFGS(ps, max_iter=5, line_search_fn="strong_wolfe"),  # compares losses
    ],
    ids=["sgd", "lbfgs", "line search"],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_closures(make_task, train, train_reference, close, mode, build):
    task = make_task("mlp")
    optimizer = build(task.model.parameters())
    pruner = SelectiveWeightDecay(
        task.model, optimizer, sparsity=0.6, steps=8, fade=Decay(GROWING, weight_decay=MU, mode=mode)
    )
    train(task, optimizer, 8, closure=True)
    assert pruner.progress == 1.0

    other = make_task("mlp")
    train_reference(other, build(other.model.parameters()), 8, 0.6, GROWING, mode=mode, mu=MU, closure=True)
    close(task.model, other.model, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_lbfgs_with_a_criterion_of_gradients(prune, train):
    """Scores come from the first evaluation of a step, when the weights are still those of its start."""
    task, optimizer, pruner = prune(
        "mlp",
        lambda m: torch.optim.LBFGS(m.parameters(), lr=0.3, max_iter=3),
        steps=5,
        criterion=criteria.taylor,
    )
    weight, scores = task.model[0].weight, []

    def look(step):
        optimizer.zero_grad()
        task.loss(step).backward()
        scores.append((weight * weight.grad).abs().detach())

    train(task, optimizer, 5, closure=True, before=look)
    torch.testing.assert_close(pruner.state_dict()["scores"]["0.weight"], scores[-1])


# Copies -----------------------------------------------------------------------------------------------


@EVERY_FADE
@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_of_the_model_are_free_and_leave_it_alone(prune, train, same_bits, make_task, fade, copier):
    """A copy carries the weights and no trace of the pruner; the original trains on as if never copied."""
    plain, optimizer, _ = prune("conv", sgd, fade)
    train(plain, optimizer, 12)

    task, optimizer, _ = prune("conv", sgd, fade)
    train(task, optimizer, 6)
    copied, twin = make_task("conv"), make_task("conv")
    copied.model = copier(task.model)
    same_bits(copied.model, task.model)
    twin.model.load_state_dict(task.model.state_dict())
    for other in (copied, twin):
        train(other, sgd(other.model), 6)
    same_bits(copied.model, twin.model)
    train(task, optimizer, 12, start=6)
    same_bits(task.model, plain.model)


def test_a_copied_optimizer_has_no_hooks_and_may_get_them(prune, train, same_bits, hooks_on):
    """As when an optimizer is rebuilt from its state: the pruner is attached to the new one and goes on."""
    plain, optimizer, _ = prune("mlp", sgd)
    train(plain, optimizer, 12)

    task, optimizer, pruner = prune("mlp", sgd)
    train(task, optimizer, 6)
    assert hooks_on(copy.deepcopy(optimizer)) == 0
    rebuilt = sgd(task.model)
    rebuilt.load_state_dict(optimizer.state_dict())
    pruner.attach(rebuilt)
    assert hooks_on(optimizer) == 0
    train(task, rebuilt, 12, start=6)
    same_bits(task.model, plain.model)


def test_a_detached_pruner_lets_training_be(prune, train, same_bits, make_task, hooks_on):
    task, optimizer, pruner = prune("mlp", sgd)
    pruner.detach()
    pruner.detach()
    assert hooks_on(optimizer) == 0
    train(task, optimizer, 5)
    assert pruner.progress == 0.0
    dense = make_task("mlp")
    train(dense, sgd(dense.model), 5)
    same_bits(task.model, dense.model)


def test_loading_the_optimizers_state_keeps_the_hooks(prune, train, same_bits):
    """It replaces the groups, learning rates included: the pruner must read the new ones."""
    task, optimizer, pruner = prune("mlp", sgd, Decay(GROWING, weight_decay=MU, mode="implicit"))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.05
    optimizer.load_state_dict(state)
    assert pruner.factor_now == pytest.approx(1 / (1 + 0.05 * MU))
    train(task, optimizer, 1)
    assert pruner.progress == 1 / 12


# Several optimizers -----------------------------------------------------------------------------------


def muon_and_adamw(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=0.01, weight_decay=0.1),
    ]


@MODES
def test_muon_for_matrices_and_adamw_for_the_rest(make_task, train, train_reference, close, mode):
    ends = []
    for reference in (False, True):
        task = make_task("mlp")
        optimizers = muon_and_adamw(task.model)
        if reference:
            train_reference(task, optimizers, 20, 0.6, GROWING, mode=mode)
        else:
            fade = Decay(GROWING, mode=mode)
            pruner = SelectiveWeightDecay(task.model, optimizers, sparsity=0.6, steps=20, fade=fade)
            train(task, optimizers, 20)
            assert pruner.progress == 1.0  # one round of both is one step
        ends.append(task.model)
    close(*ends)


@pytest.mark.parametrize("fade", [Progressive(), Latent()], ids=lambda fade: type(fade).__name__)
@pytest.mark.parametrize("backwards", [False, True])
def test_matrices_split_among_optimizers(prune, train, same_bits, make_task, backwards, fade):
    """One optimizer for each layer is one optimizer for all, in whatever order they step."""
    plain, optimizer, _ = prune("mlp", adamw, fade)
    train(plain, optimizer, 12)

    task = make_task("mlp")
    optimizers = [adamw(task.model[i]) for i in (0, 2)]
    pruner = SelectiveWeightDecay(task.model, optimizers, sparsity=0.75, steps=12, fade=fade)
    train(task, optimizers[::-1] if backwards else optimizers, 12)
    same_bits(task.model, plain.model)
    pruner.remove()


@pytest.mark.parametrize("fade", [Progressive(), Latent()], ids=lambda fade: type(fade).__name__)
def test_optimizers_that_step_inside_backward(make_task, fade):
    """As in PyTorch's recipe that saves the memory of the gradients: each has one parameter."""
    task = make_task("mlp")
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in task.model.parameters()}
    pruner = SelectiveWeightDecay(task.model, list(optimizers.values()), sparsity=0.75, steps=12, fade=fade)

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    if fade.latent:
        with pytest.raises(ValueError, match=r"steps inside backward\(\).*fade=fadeout.Progressive\(\)"):
            task.loss(0).backward()
        return
    for number in range(12):
        task.loss(number).backward()
    assert pruner.remove().sparsity == 0.75


# Wrapped models ---------------------------------------------------------------------------------------


@pytest.fixture
def process_group():
    """A group of this process alone, through a store in memory: no port is opened."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPPERS = {
    "parallel": nn.DataParallel,
    "distributed": nn.parallel.DistributedDataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "distributed compiled": lambda m: nn.parallel.DistributedDataParallel(torch.compile(m, backend="eager")),
}


@pytest.mark.usefixtures("process_group", "compiler")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@EVERY_FADE
def test_wrapped_models(prune, train, close, make_task, fade, wrapper):
    plain, optimizer, _ = prune("conv", sgd, fade)
    train(plain, optimizer, 12)

    task = make_task("conv")
    wrapped = WRAPPERS[wrapper](task.model)
    optimizer = sgd(wrapped)
    pruner = SelectiveWeightDecay(wrapped, optimizer, sparsity=0.75, steps=12, fade=FADES[fade])
    train(task, optimizer, 12, loss=lambda step: task.loss(step, wrapped))
    close(task.model, plain.model)
    assert list(pruner.masks()) == ["0.weight", "4.weight"]


def test_averaged_copies_are_pruned_by_the_masks(prune, train):
    """The average remembers what has faded; the masks of the trained model make it as sparse."""
    task, optimizer, pruner = prune("mlp", sgd)
    average = AveragedModel(task.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(task, optimizer, 12, after=lambda step: average.update_parameters(task.model))
    masks = pruner.remove()
    weights = dict(average.module.named_parameters())
    assert all(weights[name][~mask].any() for name, mask in masks.items())
    masks.apply(average)
    for name, mask in masks.items():
        assert torch.equal(weights[name] != 0, mask)


# Sparse gradients -------------------------------------------------------------------------------------


def sparse_adam(model):
    return torch.optim.SparseAdam(model.parameters(), lr=0.05)


@pytest.mark.parametrize("optimizer", [sparse_adam, sgd], ids=["sparse adam", "sgd"])
def test_sparse_gradients_are_refused_in_gradient_mode(prune, train, snapshot, same_bits, optimizer):
    task, optimizer, pruner = prune("embedding", optimizer, "gradient")
    before = snapshot(task.model)
    with pytest.raises(ValueError, match=r"'weight'.*sparse.*mode='implicit'"):
        train(task, optimizer, 1)
    same_bits(snapshot(task.model), before)
    assert pruner.progress == 0.0


@pytest.mark.parametrize("criterion", [criteria.magnitude, criteria.taylor], ids=["magnitude", "taylor"])
@pytest.mark.parametrize("fade", ["progressive", "implicit"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own advice on sparse tensors
def test_sparse_gradients_fade_after_the_step(prune, train, fade, criterion):
    task, optimizer, pruner = prune("embedding", sparse_adam, fade, criterion=criterion)
    train(task, optimizer, 12)
    assert pruner.progress == 1.0
    assert pruner.masks().left == 30 - round(0.75 * 30)
    assert (pruner.fade == 0.0) == (fade == "progressive")


# Every optimizer --------------------------------------------------------------------------------------

OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
OPTIONS = {"LBFGS": {"lr": 0.3, "max_iter": 3}, "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}}
EVERY_OPTIMIZER = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.fixture
def build_any(make_task):
    """A task that the optimizer can train: Muon takes matrices only, SparseAdam sparse gradients only."""

    def build(name):
        task = make_task("embedding" if name == "SparseAdam" else "matrices")
        return task, OPTIMIZERS[name](task.model.parameters(), **OPTIONS.get(name, {}))

    return build


def test_the_list_of_optimizers_is_not_empty():
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Muon", "LBFGS", "Adafactor"} <= OPTIMIZERS.keys()


@EVERY_OPTIMIZER
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_every_optimizer_ends_with_free_removal(build_any, train, snapshot, same_bits, name):
    task, optimizer = build_any(name)
    layers = Elements(scope="layer")  # in the whole network, some optimizers here leave a layer empty
    pruner = SelectiveWeightDecay(task.model, optimizer, sparsity=0.75, steps=20, structure=layers)
    train(task, optimizer, 20, closure=name == "LBFGS")
    before = snapshot(task.model)
    masks = pruner.remove()
    same_bits(snapshot(task.model), before)
    assert masks.sparsity == pytest.approx(0.75, abs=0.02)
    assert all(torch.equal(before[n] != 0, mask) for n, mask in masks.items())


@EVERY_OPTIMIZER
@MODES
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # in LBFGS
def test_every_optimizer_equals_the_reference(build_any, train, train_reference, close, mode, name):
    if (name, mode) == ("SparseAdam", "gradient"):
        pytest.skip("sparse gradients are refused in gradient mode, which has its own test")
    closure = {"closure": name == "LBFGS"}
    task, optimizer = build_any(name)
    fade = Decay(GROWING, weight_decay=0.01, mode=mode)
    SelectiveWeightDecay(task.model, optimizer, sparsity=0.6, steps=20, fade=fade)
    train(task, optimizer, 20, **closure)
    other, optimizer = build_any(name)
    train_reference(other, optimizer, 20, 0.6, GROWING, mode=mode, mu=0.01, **closure)
    close(task.model, other.model, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("closure", [False, True])
def test_maximizing_fades_all_the_same(bare, closure):
    """``maximize`` turns the gradient round, and with it the penalty: it must still pull to zero."""
    model = bare(w=[[1.0, -2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=Decay(4.0, weight_decay=0.5))

    def objective():
        optimizer.zero_grad()
        value = -(model.w * 0).sum()
        value.backward()
        return value

    if closure:
        optimizer.step(objective)
    else:
        objective()
        optimizer.step()
    assert model.w.flatten().tolist() == pytest.approx([0.8, -2.0])
