"""The training loop of the command line: data to private model, resumable at any step."""

from __future__ import annotations

import csv
import io
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn
from torch.utils.data import DataLoader

from bluegrad import _checks
from bluegrad._files import write_atomically
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.strategy import load_strategy, save_strategy
from bluegrad.tasks import data, models
from bluegrad.tasks.settings import Settings
from bluegrad.training import PrivacyEngine, ledger, ranks

CHECKPOINT, SETTINGS, METRICS, LEDGER, MODEL = (
    "checkpoint.pt", "settings.json", "metrics.csv", "ledger.json", "model.safetensors",
)  # fmt: skip
STRATEGY, MECHANISM = "strategy.npz", "mechanism.json"
_EVALUATION_BATCH = 1000
Metrics = dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a finished run reports."""

    settings: Settings
    mechanism: Mechanism
    metrics: list[Metrics]
    epsilon: float
    examples: int
    parameters: int
    folder: Path

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last epoch, in [0, 1]."""
        return self.metrics[-1]["test_accuracy"]

    @property
    def seconds(self) -> float:
        """Time of training and evaluation, interruptions left out."""
        return self.metrics[-1]["seconds"]


@dataclass(frozen=True)
class Progress:
    """State of a run, for whoever shows it."""

    step: int
    steps: int
    loss: float
    epsilon: float
    accuracy: float | None


class Run:
    """One private training run in a folder of its own.

    Args:
        settings: what to do.
        train: images to train on.
        test: images to measure accuracy on (treated as public).
        folder: where results go; made if missing.
        resume: continue from the folder's checkpoint if it has one.
        key: noise key of a run that is started, to repeat one exactly; a fresh one by default.
        checkpoint_seconds: time between checkpoints; 0 writes one after every step.
        noise_history: where earlier noise is kept, as `PrivacyEngine.make_private` has it.

    Raises:
        ValueError: settings that don't fit the data, or a folder that holds another run.
        OSError: the folder can't be written.
    """

    def __init__(
        self,
        settings: Settings,
        train: data.ImageData,
        test: data.ImageData,
        folder: Path,
        *,
        resume: bool,
        key: NoiseKey | None = None,
        checkpoint_seconds: float = 10.0,
        noise_history: str | Path = "host",
    ) -> None:
        self.settings, self.folder = settings, folder
        self._checkpoint_seconds = _checks.real("checkpoint_seconds", checkpoint_seconds, low=0.0, fix="e.g. 10")
        self.stop = False  # set to leave after the step under way, with a checkpoint
        self.ranks = ranks.current()
        if self.ranks.first:
            _check_folder(folder, settings, resume)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / SETTINGS).exists():  # written last
                _make_mechanism(settings, len(train), folder)
        self.ranks.wait()
        height, width, channels = train.images.shape[1:]
        model = models.for_images(height, width, channels, len(train.classes), seed=settings.seed)
        self.test = data.to_tensor_dataset(test)
        self.engine = PrivacyEngine()
        ghost = settings.grad_sample_mode == "ghost"
        made = self.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum),
            data_loader=DataLoader(data.to_tensor_dataset(train), batch_size=settings.batch_size),
            mechanism=_mechanism(settings, len(train), folder),
            max_grad_norm=settings.clip,
            criterion=nn.CrossEntropyLoss() if ghost else None,
            grad_sample_mode=settings.grad_sample_mode,
            max_physical_batch_size=settings.physical_batch_size,
            key=key,
            sampling_key=settings.sampling_key(),
            noise_history=noise_history,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if ghost else nn.CrossEntropyLoss()
        self.metrics: list[Metrics] = []
        self._sums = {"loss": 0.0, "examples": 0.0, "seconds": 0.0}  # of the epoch under way; seconds of the run
        self.finished = (folder / MODEL).exists()
        if self.finished:
            self.metrics = read_metrics(folder)
        elif (folder / CHECKPOINT).exists():
            extra = self.engine.load_checkpoint(path=folder / CHECKPOINT, module=self.model, optimizer=self.optimizer)
            self.metrics, self._sums = extra["metrics"], extra["sums"]
        self._spent = self.engine.get_epsilon_spent(settings.delta)
        if self.ranks.first:
            text = json.dumps(asdict(settings), indent=2) + "\n"
            write_atomically(folder / SETTINGS, lambda file: file.write(text.encode()))

    @property
    def steps_done(self) -> int:
        """Steps behind the run, in this process or before."""
        return self.steps if self.finished else self.optimizer.steps_taken

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.engine.mechanism.steps

    def train(self, show: Callable[[Progress], None]) -> Result:
        """Train to the last step, write everything, and report.

        Args:
            show: called after every step.

        Raises:
            OSError: a file can't be written; the last checkpoint is still whole.
        """
        if self.finished:
            return self._result()
        began, saved = time.monotonic(), time.monotonic()
        before = self._sums["seconds"]
        self._write_ledger()
        while self.optimizer.steps_taken < self.steps:
            for images, labels in self.loader:
                self._step(images, labels)
                if self.optimizer.accumulating:
                    continue
                self._sums["seconds"] = before + time.monotonic() - began
                if self._ends_epoch():
                    self._end_epoch()
                show(self._progress())
                stop, due = self.ranks.any(self.stop, time.monotonic() - saved > self._checkpoint_seconds)
                if stop or due:
                    self.save()
                if stop:
                    raise KeyboardInterrupt
                if due:
                    saved = time.monotonic()
        return self._finish()

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = self.criterion(self.model(images), labels)
        with warnings.catch_warnings():
            # Opacus' hooks on a first layer, whose input needs no gradient; they work all the same
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            loss.backward()
        if len(labels):
            self._sums["loss"] += float(loss.item()) * len(labels)
            self._sums["examples"] += len(labels)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _ends_epoch(self) -> bool:
        per_epoch = self.steps // self.settings.epochs
        return self.optimizer.steps_taken % per_epoch == 0

    def _end_epoch(self) -> None:
        self._spent = self.engine.get_epsilon_spent(self.settings.delta)
        loss, examples, nonfinite = self.ranks.total(
            self._sums["loss"], self._sums["examples"], self.optimizer.nonfinite
        )
        self.metrics.append(
            {
                "epoch": len(self.metrics) + 1,
                "step": self.optimizer.steps_taken,
                "train_loss": loss / max(examples, 1.0),
                "test_accuracy": self.accuracy(),
                "epsilon": self._spent,
                "nonfinite_gradients": int(nonfinite),
                "seconds": round(self._sums["seconds"], 3),
            }
        )
        self._sums["loss"] = self._sums["examples"] = 0.0
        self._write_metrics()

    def accuracy(self) -> float:
        """Share of test images that the model gets right."""
        self.model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in DataLoader(self.test, batch_size=_EVALUATION_BATCH):
                right += int((self.model(images).argmax(dim=1) == labels).sum())
        self.model.train()
        return right / len(self.test)

    def _progress(self) -> Progress:
        mean = self._sums["loss"] / self._sums["examples"] if self._sums["examples"] else float("nan")
        last = self.metrics[-1] if self.metrics else None
        return Progress(
            step=self.optimizer.steps_taken,
            steps=self.steps,
            loss=mean if self._sums["examples"] or last is None else last["train_loss"],
            epsilon=self._spent,
            accuracy=None if last is None else last["test_accuracy"],
        )

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        self.engine.save_checkpoint(
            path=self.folder / CHECKPOINT,
            module=self.model,
            optimizer=self.optimizer,
            extra={"metrics": self.metrics, "sums": self._sums},
        )

    def _write_metrics(self) -> None:
        if not self.ranks.first:
            return
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.metrics[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.metrics)
        write_atomically(self.folder / METRICS, lambda file: file.write(text.getvalue().encode()))

    def _write_ledger(self) -> None:
        if self.ranks.first:
            ledger.write(self.folder / LEDGER, self.engine.ledger(self.settings.delta))

    def _finish(self) -> Result:
        """Write the results, then drop the checkpoint: nothing needs the noise key any more."""
        weights = {name: p.detach().contiguous() for name, p in self.model._module.state_dict().items()}
        self._write_ledger()
        self._write_metrics()
        if self.ranks.first:
            write_atomically(self.folder / MODEL, lambda file: file.write(safetensors_bytes(weights)))
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.ranks.wait()
        return self._result()

    def _result(self) -> Result:
        return Result(
            settings=self.settings,
            mechanism=self.engine.mechanism,
            metrics=self.metrics,
            epsilon=self.engine.get_epsilon(self.settings.delta),
            examples=self.optimizer.batches.size,
            parameters=sum(p.numel() for p in self.model.parameters()),
            folder=self.folder,
        )


def _make_mechanism(settings: Settings, examples: int, folder: Path) -> None:
    """Write the calibrated mechanism of a new run into its folder, so that no search is made twice.

    Raises:
        ValueError: as `Settings.build`.
    """
    made = settings.build(examples)
    save_strategy(made.strategy, folder / STRATEGY)
    described = {"noise_multiplier": made.noise_multiplier, "period": made.participation.describe().get("period")}
    write_atomically(folder / MECHANISM, lambda file: file.write(json.dumps(described).encode()))


def _mechanism(settings: Settings, examples: int, folder: Path) -> Mechanism:
    """The mechanism of the folder's run.

    Raises:
        ValueError: a file of the folder is damaged.
    """
    path = folder / MECHANISM
    try:
        described = json.loads(path.read_text())
        law = settings.batches(examples).law(described["period"])
        return Mechanism(load_strategy(folder / STRATEGY), law, described["noise_multiplier"])
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise _checks.fail("out", str(path), f"can't be read ({error!r})", "start in another folder") from None


def _check_folder(folder: Path, settings: Settings, resume: bool) -> None:
    """Refuse a folder that holds another run, or this one without being asked to resume it."""
    if folder.exists() and not folder.is_dir():
        raise _checks.fail("out", str(folder), "is a file", "give a folder")
    if not (folder / SETTINGS).exists():
        return
    if not resume:
        raise _checks.fail("out", str(folder), "holds a run already", "add --resume, or give another folder")
    other = read_settings(folder)
    for name, value in asdict(other).items():
        if value != getattr(settings, name):
            raise _checks.fail(
                name, getattr(settings, name), f"differs from the {value!r} of the run in {folder}",
                "resume with the same options, or start in another folder",
            )  # fmt: skip


def read_metrics(folder: Path) -> list[Metrics]:
    """The metrics of a finished run.

    Raises:
        ValueError: they are missing or damaged.
    """
    path = folder / METRICS
    try:
        with path.open(newline="") as file:
            rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, TypeError, ValueError) as error:
        raise _checks.fail("out", str(path), f"can't be read ({error})", "start in another folder") from None
    if not rows:
        raise _checks.fail("out", str(path), "is empty", "start in another folder")
    return rows


def read_settings(folder: Path) -> Settings:
    """The settings saved in a run's folder.

    Raises:
        ValueError: there are none, or they are damaged.
    """
    path = folder / SETTINGS
    try:
        return Settings(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise _checks.fail("out", str(folder), "holds no run to resume", "give the folder of one") from None
    except (TypeError, ValueError) as error:
        raise _checks.fail("out", str(path), f"isn't a run's settings ({error})", "start in another folder") from None


def load_data(
    settings: Settings, progress: Callable[[int, int], None] | None = None
) -> tuple[data.ImageData, data.ImageData]:
    """Training and test images that the settings name; the demo's digits by default.

    Raises:
        ValueError: missing, unreadable or unfit data, named by path.
    """
    if settings.data is None:
        return data.demo()
    return data.load_pair(settings.data, settings.test_data, progress=progress)
