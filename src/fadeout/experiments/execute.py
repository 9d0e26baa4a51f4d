"""Carrying a run out, in its own folder. To run it again *is* to resume it."""

import contextlib
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fadeout.experiments.build import build_data, build_fitting, build_model, build_optimizer, build_structure
from fadeout.experiments.disk.checkpoint import BEFORE, append_metrics, read_checkpoint, write_checkpoint
from fadeout.experiments.disk.record_file import VERSION, damaged, read_record, write_record
from fadeout.experiments.disk.run_folder import alone, check_version, write_json
from fadeout.experiments.distributed import ALONE, World
from fadeout.experiments.kept_set import TIMES, overlaps, pack
from fadeout.experiments.progress import PROGRESS, write_progress
from fadeout.experiments.result import describe_record, make_record
from fadeout.experiments.run import Run
from fadeout.experiments.signals import asked_to_stop
from fadeout.experiments.training import LEARNING_RATES, Accuracy, Step, evaluate, train
from fadeout.masks import Masks
from fadeout.methods.dense import NoPruning
from fadeout.methods.magnitude import lowest, one_shot
from fadeout.methods.method import Phase
from fadeout.torch_bridge.parameters import has_two_dimensions

_TEST_BATCH, _TEST_VALUES = 1000, 10_000_000  # inputs at a time: so many, and so many numbers in all
_TELL_EVERY = 1.0  # seconds


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop; its state is saved."""


def execute(
    run: Run,
    results: str | os.PathLike[str] = "runs",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    checkpoint_every: float = 60.0,
    watch: Callable[[dict[str, Any]], object] | None = None,
    stop: Callable[[], bool] = lambda: False,
    world: World = ALONE,
) -> dict[str, Any]:
    """Carry a run out, or go on where it was stopped, or read its result if there is one.

    The folder ``results/<hash>`` holds ``config.json``, ``metrics.jsonl`` (a line for each test),
    ``checkpoint``, ``progress.json`` while it goes on (for who follows it from elsewhere) and in the end
    ``result.json``. Whenever the process dies, a later call ends with bit-identical metrics
    and weights, on the same machine with the same number of threads.

    Args:
        results: the folder of all runs.
        data_dir: where the data sets lie; by default the environment's ``FADEOUT_DATA``, then a cache.
        device: ``cpu``, ``cuda`` or ``mps``.
        checkpoint_every: seconds between two checkpoints; 0 writes one after each step.
        watch: called after every step with figures for a display.
        stop: asked after every step whether to save and stop, as a signal does.
        world: the processes that carry it out together (:func:`~.distributed.join`), all of which call
            this. It is no part of the run: what some of them have begun, others can end, be they fewer or
            more. Only rank 0 writes.

    Returns:
        the record in ``result.json``.
    """
    folder = Path(results) / run.hash
    device = checked_device(world.device if world.size > 1 else device)
    check_interval(checkpoint_every)
    with contextlib.ExitStack() as held:
        found = world.first(lambda: _open(folder, run, held))
        if found is not None:
            return found
        execution = Execution(run, folder, data_dir, device, checkpoint_every, watch, world, stop)
        with asked_to_stop(patient=world.size > 1) as execution.stopping:
            record = execution.carry_out()
            world.first(lambda: _close(folder, record))
            (stopped,) = world.any(bool(execution.stopping))
        if stopped:  # too late to stop the run, but not what would follow it
            raise Stopped
        return record


def _open(folder: Path, run: Run, held: contextlib.ExitStack) -> dict[str, Any] | None:
    """Take hold of the run's folder; returns the record if the run is finished."""
    check_version(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    if not result.exists():
        held.enter_context(alone(folder))
    if result.exists():
        record = read_record(result)
        if record.get("hash") != run.hash:
            raise damaged(result, f"it is of another run, {record.get('hash')}")
        try:
            describe_record(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(result, f"it lacks {error}") from error
        return record
    for left in folder.glob(".*.tmp"):  # half a file, by a process that was killed
        left.unlink()
    write_json(folder / "config.json", {"version": VERSION, "run": run.to_dict()})
    return None


def _close(folder: Path, record: dict[str, Any]) -> None:
    for name in (BEFORE, PROGRESS):  # of use only while it was under way
        (folder / name).unlink(missing_ok=True)
    write_record(folder / "result.json", record)


class Execution:
    """One run under way: network, optimizer, pruner, and where in its phases it is."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        data_dir: str | os.PathLike[str] | None,
        device: str,
        checkpoint_every: float,
        watch: Callable[[dict[str, Any]], object] | None,
        world: World = ALONE,
        stop: Callable[[], bool] = lambda: False,
    ):
        self.run, self.folder, self.device, self.world = run, folder, device, world
        self.every, self.watch, self.stop, self.stopping = checkpoint_every, watch, stop, []
        self.data = world.own(build_data(run, data_dir))
        self.steps = min(self.data.steps(run.batch_size), run.steps or 10**9)
        self.example = _moved(self.data.example, device)
        self.model = build_fitting(run, self.data.num_classes, self.example)
        world.check(self.model, run.batch_size, self.data.example)
        self.structure = build_structure(run, self.example)
        if run.method != "dense":  # a target out of reach is said now, not after the training
            self.structure.bind(self.model, None, has_two_dimensions).check(run.sparsity)
        self.network: Any = world.wrap(self.model)
        self.network = torch.compile(self.network) if run.compile else self.network
        self.optimizer = build_optimizer(run, self.model)
        self.scheduler: Any = None
        self.pruner: Any = NoPruning()
        self.masks, self.removed = Masks({}), 0.0
        self.hold: Any = None
        self.phases = run.phases()
        self.ends = list(itertools.accumulate(phase.epochs for phase in self.phases))
        self.phase = self.epoch = self.step = 0  # where to go on: phase, epoch in all, step in the epoch
        self.figures: dict[str, Any] = {}
        self.tested: Accuracy | None = None
        self.losses: list[float] = []
        self.worlds: list[str] = []  # who has been at it
        self.seconds, self.since, self.saved = 0.0, time.monotonic(), time.monotonic()
        self.told = 0.0

    def carry_out(self) -> dict[str, Any]:
        """All phases, from wherever the checkpoint says; returns the record."""
        place = self.device if self.world.size == 1 else "cpu"
        state = self.world.first(lambda: read_checkpoint(self.folder, place))
        if state is not None:
            self._restore(state)
        self.worlds = list(dict.fromkeys([*self.worlds, str(self.world)]))
        while self.phase < len(self.phases):
            if state is None:
                self._enter(self.phases[self.phase])
            state = None
            self._train()
            self._leave()
        self._detach()
        if "after" not in self.figures:
            self.figures["after"], self.figures["top5"] = self._test()
            if noted := self.figures.pop("kept", []):
                self.figures["overlap"] = overlaps(noted, self._pack(self.masks))
            self._save()
        return self._record()

    # Phases -------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        if phase.remove is not None:
            self.figures["before"], self.figures["top5_before"] = self._test()
            self._take(one_shot(self.model, phase.remove, structure=self.structure, before=self.masks))
            self.figures["removed"] = self._test().top1
        self._equip(phase)

    def _equip(self, phase: Phase) -> None:
        """Optimizer, learning rate, pruner and masks of a phase."""
        steps = phase.epochs * self.steps
        self._detach()
        if phase.restart:
            self.optimizer = build_optimizer(self.run, self.model)
            self.scheduler = LEARNING_RATES[self.run.learning_rates](self.optimizer, steps)
        else:
            self.scheduler = None
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] if phase.lr is None else phase.lr
        if phase.pruner is not None:
            self.pruner = phase.pruner(self.model, self.optimizer, steps=steps, structure=self.structure)
        if self.masks:
            self.hold = self.masks.hold(self.model, self.optimizer)

    def _train(self) -> None:
        train(
            self.network,
            self.optimizer,
            self.data,
            epochs=self.ends[self.phase] - self.epoch,
            batch_size=self.run.batch_size,
            seed=self.run.seed,
            first_epoch=self.epoch,
            first_step=self.step,
            steps=self.run.steps,
            scheduler=self.scheduler,
            device=self.device,
            bfloat16=self.run.precision == "bfloat16",
            on_epoch=self._begin_epoch,
            on_step=self._after_step,
            world=self.world,
        )

    def _leave(self) -> None:
        if not isinstance(self.pruner, NoPruning):
            before = self._test()
            with warnings.catch_warnings():  # the record tells what removal changed
                warnings.simplefilter("ignore", UserWarning)
                masks = self.pruner.remove()
            if masks:
                self._take(masks)
                self.figures["before"], self.figures["top5_before"] = before
                self.figures["removed"] = self._test().top1
            self.pruner = NoPruning()
        self.phase += 1

    def _take(self, masks: Masks) -> None:
        self.masks, self.removed, self.tested = masks, masks.sparsity, None

    def _begin_epoch(self, epoch: int) -> None:
        if self.run.soft and self.phases[self.phase].restart and not self.masks:
            one_shot(self.model, self.run.sparsity, structure=self.structure)

    def _after_step(self, now: Step) -> None:
        self.epoch, self.step, self.tested = now.epoch, now.step + 1, None
        self.losses.append(now.loss.item())
        if math.isnan(self.losses[-1]):  # where a pruner acts, it has noticed already
            raise ValueError(
                f"the loss is NaN in epoch {now.epoch + 1}, step {now.step + 1}: training has diverged. Take "
                "a smaller --lr"
            )
        if self.step == self.steps:
            self.epoch, self.step = self.epoch + 1, 0
            if self.epoch % self.run.evaluate_every == 0 or self.epoch == self.ends[self.phase]:
                self._note(now.epoch)
        if self.watch is not None:
            self.watch(self._display(now))
        if self.world.main and time.monotonic() - self.told >= _TELL_EVERY:
            self.told = time.monotonic()
            shown = {name: value for name, value in self._display(now).items() if name != "pruner"}
            write_progress(self.folder, shown | {"seconds": self._elapsed()})
        due = self.world.main and time.monotonic() - self.saved >= self.every
        stop, save = self.world.any(bool(self.stopping) or self.stop(), due)
        if stop or save:
            self._save()
        if stop:
            raise Stopped

    def _detach(self) -> None:
        self.pruner.detach()
        if self.hold is not None:
            self.hold.remove()
            self.hold = None

    # Figures ------------------------------------------------------------------------------------

    def _test(self) -> Accuracy:
        """The accuracy of the network as it is; what has not changed since the last test is not tested."""
        if self.tested is None:
            graph = isinstance(self.example, tuple)
            size = _TEST_BATCH if graph else max(1, _TEST_VALUES // self.example.numel())
            batches = self.data.tests(min(_TEST_BATCH, size))
            self.tested = evaluate(self.network, batches, self.device, self.world)
        return self.tested

    def _note(self, epoch: int) -> None:
        """A line of metrics. Nothing in it depends on the clock."""
        found = self._test()
        line = {
            "phase": self.phases[self.phase].name,
            "epoch": epoch,
            "loss": sum(self.losses) / len(self.losses),
            "top1": found.top1,
            "top5": found.top5,
            "lr": self.optimizer.param_groups[0]["lr"],
            "sparsity": self.pruner.sparsity_now if not self.masks else self.removed,
        }
        self.losses = []
        self.figures["top1"] = found.top1
        self._note_kept()
        if self.world.main:
            append_metrics(self.folder, line)

    def _note_kept(self) -> None:
        """Which weights a removal would keep now; not while a network trains that nothing acts on."""
        noted, progress = self.figures.setdefault("kept", []), self.epoch / self.ends[-1]
        if self.phases[self.phase].pruner is None and not self.masks:
            return
        if not noted or int(TIMES * progress) > int(TIMES * noted[-1][0]):
            masks = self.pruner.masks() or lowest(self.model, self.run.sparsity, self.masks, self.structure)
            noted.append((progress, self._pack(masks)))

    def _pack(self, masks: Masks) -> str:
        return pack(masks, channels=self.run.structure == "channels")

    def _display(self, now: Step) -> dict[str, Any]:
        return {
            "phase": self.phases[self.phase].name,
            "epoch": now.epoch,
            "epochs": self.ends[-1],
            "in_epoch": self.steps,
            "step": now.epoch * self.steps + now.step + 1,
            "steps": self.ends[-1] * self.steps,
            "loss": self.losses[-1] if self.losses else now.loss.item(),
            "top1": self.figures.get("top1"),
            "sparsity": self.pruner.sparsity_now if not self.masks else self.removed,
            "factor": self.pruner.factor_now,
            "pruner": self.pruner if self.world.size == 1 else None,  # one rank has not all the weights
        }

    def _record(self) -> dict[str, Any]:
        state = self.world.whole(self.model.state_dict())

        def measure() -> dict[str, Any]:
            model = build_model(self.run, self.data.num_classes).to(self.device)
            record = make_record(self.run, model, state, self.example, self.figures, self._elapsed())
            return record | ({"parallel": self.worlds} if self.worlds != [str(ALONE)] else {})

        return self.world.first(measure)

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.since

    # State --------------------------------------------------------------------------------------

    def _save(self) -> None:
        state = self.world.whole(self._state()) | {"seconds": self._elapsed()}
        self.world.first(lambda: write_checkpoint(self.folder, state))
        self.saved = time.monotonic()

    def _state(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "pruner": self.pruner.state_dict(),
            "masks": dict(self.masks),
            "figures": self.figures,
            "losses": self.losses,
            "worlds": self.worlds,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.phase, self.epoch, self.step = state["phase"], state["epoch"], state["step"]
        self._take(Masks(state["masks"]))
        self.figures, self.losses, self.seconds = state["figures"], state["losses"], state["seconds"]
        self.worlds = state.get("worlds", [str(ALONE)])
        self.world.load(self.model, state["model"])
        if self.phase < len(self.phases):
            self._equip(self.phases[self.phase])
            self.world.load_optimizer(self.optimizer, state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.pruner.load_state_dict(state["pruner"])


def check_interval(checkpoint_every: float) -> None:
    """Raise where it is no time between two checkpoints."""
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every is a number of seconds from 0 on, got {checkpoint_every}")


def checked_device(device: str) -> str:
    """The device, if there is one; "cpu:0", which torch.load does not know, is the CPU."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"no device {device!r} here: {str(error).splitlines()[0]}") from error
    return "cpu" if torch.device(device).type == "cpu" else device


def _moved(example: Any, device: str) -> Any:
    return tuple(part.to(device) for part in example) if isinstance(example, tuple) else example.to(device)
