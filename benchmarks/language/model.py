"""Define the text, model, learning rate, evaluation and record, which are equal for all systems.

This module needs only torch, so it runs in the environment of each system.
"""

from __future__ import annotations

import json
import math
import os
import sysconfig
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

BATCH, CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 4, 64, 128, 4, 4, 256
PEAK_LR = {"adamw": 2e-3, "sgd": 0.05, "muon": 4e-3}
BETAS, MOMENTUM, WEIGHT_DECAY = (0.9, 0.95), 0.9, 0.1
MODULES = 12
BLOCK_BYTES, HELD_OUT_EVERY = 4096, 20
EVALUATED = 128  # sequences of held-out text, which are equal for all workers and systems
POLL_S = 0.01

torch.set_num_threads(1)


def text() -> bytes:
    """Return 2 MB of text: Python's language reference and the largest modules of its library.

    The text is the same on all machines with the same version of Python.
    """
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(library.glob("*.py"), key=lambda path: (-path.stat().st_size, path.name))
    paths = [library / "pydoc_data" / "topics.py", *modules[:MODULES]]
    return b"\n".join(path.read_bytes() for path in paths)


def split(raw: bytes) -> tuple[Tensor, Tensor]:
    """Return the training bytes and the held-out bytes. Every 20th block of 4096 is held out."""
    whole = len(raw) // BLOCK_BYTES * BLOCK_BYTES
    blocks = torch.frombuffer(bytearray(raw[:whole]), dtype=torch.uint8).view(-1, BLOCK_BYTES)
    is_held_out = torch.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY // 2
    return blocks[~is_held_out].flatten().long(), blocks[is_held_out].flatten().long()


def sequences(source: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, shape (len(starts), CONTEXT). A target is the next byte."""
    found = source[starts[:, None] + torch.arange(CONTEXT + 1)]
    return found[:, :-1], found[:, 1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A transformer of 0.87 M parameters. Its `forward` returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        hidden = self.blocks(self.token(inputs) + self.position.weight)
        return functional.cross_entropy(
            self.head(self.norm(hidden)).flatten(0, 1), targets.flatten()
        )


class Optimizers(list[optim.Optimizer]):
    """A list of optimizers for parts of a model, with the interface of one optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self for group in each.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self:
            each.zero_grad(set_to_none)

    def step(self) -> None:
        for each in self:
            each.step()

    def state_dict(self) -> dict[str, Any]:
        return {str(number): each.state_dict() for number, each in enumerate(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, each in enumerate(self):
            each.load_state_dict(state[str(number)])


def build() -> tuple[GPT, Any]:
    """Return the model and its optimizer(s). All runs have equal initial parameters."""
    torch.manual_seed(0)
    net = GPT()
    name = plan()["optimizer"]
    lr = PEAK_LR[name]
    if name == "sgd":
        return net, optim.SGD(net.parameters(), lr, momentum=MOMENTUM)
    if name == "adamw":
        return net, optim.AdamW(net.parameters(), lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    hidden = [p for p in net.blocks.parameters() if p.dim() == 2]  # Muon trains matrices
    rest = [p for p in net.parameters() if all(p is not each for each in hidden)]
    muon = optim.Muon(hidden, lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return net, Optimizers([muon, optim.AdamW(rest, lr, betas=BETAS, weight_decay=WEIGHT_DECAY)])


def set_lr(optimizer: Any, step: int) -> None:
    """Set the learning rate. It rises over 100 steps, stays until 400, and falls as 1 / sqrt(step).

    The schedule does not depend on the length of a run, so it favors neither fast nor slow systems.
    """
    peak = PEAK_LR[plan()["optimizer"]]
    for group in optimizer.param_groups:
        group["lr"] = peak * min((step + 1) / 100, 1.0, math.sqrt(400 / max(step, 1)))


@cache
def plan() -> dict[str, Any]:
    """Return the plan of this run, which the supervisor has written."""
    found: dict[str, Any] = json.loads(Path(os.environ["LANGUAGE_RUN"], "plan.json").read_text())
    return found


class Worker:
    """One training process of a run, with its batches, the clock, and a file of its events.

    A worker trains until the supervisor ends the process. The clock is `time.monotonic`, which is
    equal in all processes of a machine. The supervisor sets second 0 when all workers are ready.
    """

    def __init__(self) -> None:
        """Wait until all workers of the run are ready. A restarted worker continues at once."""
        self.folder = Path(os.environ["LANGUAGE_RUN"])
        self.plan = plan()
        names = ("LANGUAGE_WORKER", "DPWA_RANK", "RANK")  # from run.py, dpwa launch, torchrun
        self.index = int(next(os.environ[name] for name in names if name in os.environ))
        train, held_out = split(text())
        if self.plan["own_text"]:
            train = train.tensor_split(self.plan["workers"])[self.index]
        self._train = train
        self._held_out = sequences(
            held_out, torch.linspace(0, len(held_out) - CONTEXT - 1, EVALUATED).long()
        )
        path = self.folder / f"w{self.index}.jsonl"
        life = path.read_text().count('"ready"') if path.exists() else 0
        self._batches = torch.Generator().manual_seed(  # a restarted worker gets other batches
            1_000_003 * self.plan["seed"] + 1009 * self.index + 7919 * life
        )
        self._record = path.open("a", buffering=1)
        self._begin = 0.0
        self.note("ready", pid=os.getpid(), text_bytes=len(train))
        while not (go := self.folder / "go").exists():
            time.sleep(POLL_S)
        self._begin = float(go.read_text())
        time.sleep(max(0.0, -self.now()))
        self._mark = self._next_mark()
        self.note("begun")

    def now(self) -> float:
        return time.monotonic() - self._begin

    def note(self, event: str, **more: Any) -> None:
        """Write an event to the file of this worker."""
        self._record.write(json.dumps({"event": event, "t": round(self.now(), 3), **more}) + "\n")

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step. The slow worker sleeps first."""
        starts = torch.randint(len(self._train) - CONTEXT, (BATCH,), generator=self._batches)
        if self.index == self.plan["slow_worker"]:
            time.sleep(self.plan["slow_ms"] / 1000)
        return sequences(self._train, starts)

    def stepped(self, net: nn.Module, step: int, **more: Any) -> None:
        """Write the number of the step to the file, and evaluate the model if this is due."""
        self.note("step", step=step, **more)
        if self.now() >= self._mark:
            mark = self._next_mark() - self.plan["evaluate_s"]
            self.note("loss", mark=mark, step=step, loss=round(self._loss_of(net), 4))
            self._mark = self._next_mark()

    def _next_mark(self) -> float:
        every: float = self.plan["evaluate_s"]
        return every * (math.floor(self.now() / every) + 1)

    @torch.no_grad()
    def _loss_of(self, net: nn.Module) -> float:
        pairs = zip(*(each.split(EVALUATED // 4) for each in self._held_out), strict=True)
        return sum(net(inputs, targets).item() for inputs, targets in pairs) / 4
