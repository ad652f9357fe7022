"""What all systems share: text, model, learning rate, evaluation, and the record of a worker.

Needs torch alone, so that it runs in the environment of every system.
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
EVALUATED = 128  # sequences of held-out text, the same ones everywhere
POLL_S = 0.01

torch.set_num_threads(1)


def text() -> bytes:
    """Return 2 MB that Python ships: its language reference and its largest modules.

    They are the same on all machines with the same version of Python.
    """
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(library.glob("*.py"), key=lambda path: (-path.stat().st_size, path.name))
    paths = [library / "pydoc_data" / "topics.py", *modules[:MODULES]]
    return b"\n".join(path.read_bytes() for path in paths)


def split(raw: bytes) -> tuple[Tensor, Tensor]:
    """Return the bytes to train on, and those held out: every 20th block of 4096."""
    whole = len(raw) // BLOCK_BYTES * BLOCK_BYTES
    blocks = torch.frombuffer(bytearray(raw[:whole]), dtype=torch.uint8).view(-1, BLOCK_BYTES)
    is_held_out = torch.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY // 2
    return blocks[~is_held_out].flatten().long(), blocks[is_held_out].flatten().long()


def sequences(source: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, both (len(starts), CONTEXT): each target is the next byte."""
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
    """A transformer of 0.87 M parameters; called with inputs and targets, it returns the loss."""

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
    """The optimizers of a model, to be used as if they were one."""

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
    """Return the model and its optimizer, or `Optimizers`; all runs begin with the same values."""
    torch.manual_seed(0)
    net = GPT()
    name = plan()["optimizer"]
    lr = PEAK_LR[name]
    if name == "sgd":
        return net, optim.SGD(net.parameters(), lr, momentum=MOMENTUM)
    if name == "adamw":
        return net, optim.AdamW(net.parameters(), lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    hidden = [p for p in net.blocks.parameters() if p.dim() == 2]  # what Muon is for
    rest = [p for p in net.parameters() if all(p is not each for each in hidden)]
    muon = optim.Muon(hidden, lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return net, Optimizers([muon, optim.AdamW(rest, lr, betas=BETAS, weight_decay=WEIGHT_DECAY)])


def set_lr(optimizer: Any, step: int) -> None:
    """Rise over 100 steps, stay until 400, then fall as 1 / sqrt(step).

    It has no end to plan for, so nobody gains by being fast or slow.
    """
    peak = PEAK_LR[plan()["optimizer"]]
    for group in optimizer.param_groups:
        group["lr"] = peak * min((step + 1) / 100, 1.0, math.sqrt(400 / max(step, 1)))


@cache
def plan() -> dict[str, Any]:
    """Return what the supervisor has planned for this run."""
    found: dict[str, Any] = json.loads(Path(os.environ["LANGUAGE_RUN"], "plan.json").read_text())
    return found


class Worker:
    """One process of a run: its batches, the clock that all share, and a file of what happened.

    It trains until the supervisor ends it. The clock is `time.monotonic`, which all processes of a
    machine share; second 0 is when the supervisor lets all begin.
    """

    def __init__(self) -> None:
        """Wait until all processes of the run are here; one that is restarted goes on at once."""
        self.folder = Path(os.environ["LANGUAGE_RUN"])
        self.plan = plan()
        names = ("LANGUAGE_WORKER", "DPWA_RANK", "RANK")  # of run.py, dpwa launch, torchrun
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
        self._batches = torch.Generator().manual_seed(  # others than in the life before
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
        """Write a line of the record."""
        self._record.write(json.dumps({"event": event, "t": round(self.now(), 3), **more}) + "\n")

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step; who is slow comes to them late."""
        starts = torch.randint(len(self._train) - CONTEXT, (BATCH,), generator=self._batches)
        if self.index == self.plan["slow_worker"]:
            time.sleep(self.plan["slow_ms"] / 1000)
        return sequences(self._train, starts)

    def stepped(self, net: nn.Module, step: int, **more: Any) -> None:
        """Note a step, and evaluate when it is time; `step`: how many the model has had."""
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
