"""Train the model of one node, and write the log and the weights of the node."""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from augment import random_crop_and_flip
from cifar import Cifar10, Split, normalize, private_shard, read_cifar10
from evaluate import accuracy, recompute_batch_norm
from models import MODELS
from options import Place
from torch import Tensor, nn
from torch.nn import functional

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import UserError

TEST_BATCH_SIZE = 500
LOG_COLUMNS = (
    "epoch",
    "steps",
    "seconds",
    "learning_rate",
    "train_loss",
    "test_accuracy",
    "merges",
    "consensus_distance",
)
SHOWN_COLUMNS = ("epoch", "train_loss", "test_accuracy", "merges", "seconds")


@dataclass
class Progress:
    """The results of one epoch. `consensus_distance` is from the last merge of the epoch."""

    steps: int = 0
    loss_sum: float = 0.0
    merges: int = 0
    consensus_distance: float | None = None


class Trainer:
    """The model, the optimizer and the data of one node."""

    def __init__(self, options: argparse.Namespace, place: Place, data: Cifar10) -> None:
        self.options = options
        self.device = default_device(place.rank)
        shard = private_shard(data.train, place.rank, place.world_size, options.seed)
        self.shard = shard.to(self.device)
        self.test = data.test.to(self.device)
        # All nodes start from the same parameters. The average of unrelated networks is useless.
        torch.manual_seed(options.seed)
        self.model = MODELS[options.model]().to(self.device)
        # The order of images, the augmentation and dropout differ between nodes.
        torch.manual_seed(options.seed + place.rank + 1)
        self.generator = torch.Generator().manual_seed(options.seed + place.rank + 1)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=options.lr,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            nesterov=options.momentum > 0.0,
        )
        self.schedule = torch.optim.lr_scheduler.StepLR(
            self.optimizer, options.lr_decay_every, options.lr_decay
        )
        self.loss: float | None = None  # of the last step

    def train_epoch(self, gossip: DpwaPyTorchAdapter | None) -> Progress:
        """Train on the shard once. The calls before and after each step exchange parameters."""
        progress = Progress()
        for images, labels in islice(self.training_batches(), self.options.steps_per_epoch):
            if gossip is not None:
                gossip.update_send(self.loss)
            self.loss = self.step(images, labels)
            merge = gossip.update_wait(self.loss) if gossip is not None else None
            progress.steps += 1
            progress.loss_sum += self.loss
            if merge is not None:
                progress.merges += 1
                progress.consensus_distance = merge.consensus_distance
        return progress

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Take one step of stochastic gradient descent. Return the loss of the batch."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def test_accuracy(self) -> float:
        """Recompute the batch-norm statistics, and return the test accuracy."""
        if self.options.batch_norm_batches > 0:
            batches = islice(self.training_batches(), self.options.batch_norm_batches)
            recompute_batch_norm(self.model, (images for images, _ in batches))
        return accuracy(self.model, test_batches(self.test))

    def training_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the shard once, in a new order and with augmentation."""
        order = torch.randperm(len(self.shard), generator=self.generator).to(self.device)
        for chosen in torch.split(order, self.options.batch_size):
            images = random_crop_and_flip(self.shard.images[chosen], self.generator)
            yield normalize(images), self.shard.labels[chosen]


def train(options: argparse.Namespace, place: Place) -> None:
    """Train and test for all epochs. Write a line of the log and the weights after each epoch.

    Raises:
        DpwaError: the data or the configuration of the node is invalid.
        OSError: a file cannot be written.
    """
    trainer = Trainer(options, place, read_cifar10(options.data_dir))
    output = options.output.with_name(f"{options.output.stem}-{place.name}.pt")
    output.parent.mkdir(parents=True, exist_ok=True)
    done = resume(trainer, output) if options.resume else 0
    with (
        output.with_suffix(".csv").open("a" if done else "w", newline="") as log_file,
        connect(trainer, place) as gossip,
    ):
        log = csv.DictWriter(log_file, LOG_COLUMNS)
        if not done:
            log.writeheader()
        for epoch in range(done + 1, options.epochs + 1):
            row = {"epoch": epoch, **run_epoch(trainer, gossip)}
            log.writerow(row)
            log_file.flush()
            save_weights(trainer.model, output)
            print(", ".join(f"{column} {row[column]}" for column in SHOWN_COLUMNS), flush=True)
        if gossip is not None:
            print(gossip.finish(), flush=True)
            print(f"together: test_accuracy {trainer.test_accuracy():.4f}", flush=True)
            save_weights(trainer.model, output)


def resume(trainer: Trainer, output: Path) -> int:
    """Load the weights of an earlier run, and return the number of epochs in its log.

    The momentum starts at zero. To save the whole state, use the setting `checkpoint` of the
    configuration.

    Raises:
        UserError: there are no weights for this model.
    """
    try:
        weights = torch.load(output, map_location=trainer.device, weights_only=True)
        trainer.model.load_state_dict(weights)
    except FileNotFoundError:
        raise UserError(f"{output}: there is no such file. Leave out --resume") from None
    except (RuntimeError, UnpicklingError) as error:
        raise UserError(f"{output}: no weights of {trainer.options.model}: {error}") from None
    with output.with_suffix(".csv").open(newline="") as log_file:
        epochs = [int(row["epoch"]) for row in csv.DictReader(log_file)]
    done = max(epochs, default=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if the schedule is ahead of the optimizer
        for _ in range(done):
            trainer.schedule.step()
    return done


def run_epoch(trainer: Trainer, gossip: DpwaPyTorchAdapter | None) -> dict[str, Any]:
    """Train for one epoch, and test. Return the row of the log without the column `epoch`."""
    start = time.monotonic()
    learning_rate = trainer.schedule.get_last_lr()[0]
    progress = trainer.train_epoch(gossip)
    trainer.schedule.step()
    return {
        "steps": progress.steps,
        "learning_rate": learning_rate,
        "train_loss": round(progress.loss_sum / progress.steps, 4),
        "test_accuracy": round(trainer.test_accuracy(), 4),
        "merges": progress.merges,
        "consensus_distance": progress.consensus_distance,
        "seconds": round(time.monotonic() - start, 1),
    }


def connect(trainer: Trainer, place: Place) -> AbstractContextManager[DpwaPyTorchAdapter | None]:
    """Return the adapter of this node. Its context is `None` if the process trains alone."""
    if place.config is None:
        print("DPWA_NAME is not set, so this process trains alone (see `dpwa launch`)", flush=True)
        return nullcontext()
    return DpwaPyTorchAdapter(
        trainer.model,
        place.name,
        place.config,
        optimizer=trainer.optimizer,
        scheduler=trainer.schedule,
    )


def test_batches(split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the test images in order, without augmentation."""
    for start in range(0, len(split), TEST_BATCH_SIZE):
        images = split.images[start : start + TEST_BATCH_SIZE]
        yield normalize(images), split.labels[start : start + TEST_BATCH_SIZE]


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the state_dict of the model. A crash never leaves an incomplete file at `path`."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(model.state_dict(), unfinished)
    unfinished.replace(path)


def default_device(rank: int) -> torch.device:
    """Return the GPU of this rank, or the CPU if there is no GPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
