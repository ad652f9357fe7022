"""pair_trainer.py CELL...: one node of a cell of the campaign of pairs, in the loop of a library.

Leaves what it has to tell, or the error that it was refused by; see `pairs.node_of_a_cell`.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "campaigns"))

from cases.loops import Told, Training, batch_of, loss_of, meet_peers, validation_loss
from pairs import node_of_a_cell

from dpwa.errors import DpwaError


class Watch:
    """Meets the peers before the first step, and notes each one."""

    def __init__(self, plan, training):
        self.plan, self.training = plan, training
        self.rows, self.losses = [], [validation_loss(plan, training.net)]

    def begin(self, gossip):
        meet_peers(self.plan, gossip.connection)

    def note(self, gossip):
        pace = gossip.connection.node.report().get("pace")
        values = self.training.values()
        self.rows.append((gossip.updates, tuple(pace["in_pace"]) if pace else (), values))
        self.losses.append(validation_loss(self.plan, self.training.net))

    def told(self, gossip):
        """Return what has come of it when the library has finished."""
        training, before = self.training, self.rows[-1][2]
        self.losses.append(validation_loss(self.plan, training.net))
        return Told(
            self.rows, self.losses, before, training.values(), training.buffers(),
            training.rates(), gossip.merges, [gossip.report], gossip.gossip.updates,
        )  # fmt: skip


def by_accelerate(plan, training, index, watch, **given):
    from accelerate import Accelerator

    from dpwa.integrations.accelerate import DpwaGossip

    accelerator = Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(training.net, training.optimizers[0])
    with DpwaGossip(accelerator, net, optimizer, **given) as gossip:
        watch.begin(gossip.gossip)
        while gossip.gossip.updates < plan.steps:
            with accelerator.accumulate(net):
                loss = loss_of(net, batch_of(index, gossip.gossip.updates, 0))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                gossip.step(loss)
            watch.note(gossip.gossip)
    return gossip


def by_lightning(plan, training, index, watch, **given):
    import lightning.pytorch as lightning

    from dpwa.integrations.lightning import DpwaCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = training.net

        def training_step(self, batch, batch_idx):
            return loss_of(self.net, batch_of(index, int(batch), 0))

        def configure_optimizers(self):
            return training.optimizers[0]

    class Watched(lightning.Callback):
        """Comes after the gossip."""

        def on_train_start(self, trainer, pl_module):
            watch.begin(gossip.gossip)

        def on_train_batch_end(self, *_):
            watch.note(gossip.gossip)

    gossip = DpwaCallback(**given)
    trainer = lightning.Trainer(
        max_steps=plan.steps, accelerator="cpu", devices=1, callbacks=[gossip, Watched()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(range(plan.steps), num_workers=0))
    return gossip


class WithLoss(nn.Module):
    """Gives the loss, as a Trainer wants it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs, rows, targets):
        return {"loss": loss_of(self.net, (inputs, rows, targets))}


def by_trainer(plan, training, index, watch, **given):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from dpwa.integrations.transformers import DpwaCallback

    class Watched(TrainerCallback):
        """Comes after the gossip."""

        def on_train_begin(self, args, state, control, **kwargs):
            watch.begin(gossip.gossip)

        def on_step_end(self, args, state, control, **kwargs):
            watch.note(gossip.gossip)

    batches = [batch_of(index, step, 0) for step in range(plan.steps)]
    rows = [
        dict(zip(("inputs", "rows", "targets"), each, strict=True))
        for batch in batches
        for each in zip(*batch, strict=True)
    ]
    gossip = DpwaCallback(**given)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=plan.steps, per_device_train_batch_size=8,
            max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=True, seed=0,
        )  # fmt: skip
        (optimizer,) = training.optimizers
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        trainer = Trainer(
            WithLoss(training.net), arguments, train_dataset=rows, callbacks=[gossip, Watched()],
            optimizers=(optimizer, constant),
        )  # fmt: skip
        trainer.train()
    return gossip


PLAYED_BY = {"accelerate": by_accelerate, "lightning": by_lightning, "trainer": by_trainer}

warnings.simplefilter("ignore")  # of the libraries, which advise
plan, index, tell = node_of_a_cell()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
training = Training(plan)
watch = Watch(plan, training)
own = {"config": plan.settings, "name": f"w{index + 1}"}
try:
    tell(watch.told(PLAYED_BY[plan.inside](plan, training, index, watch, **own)))
except DpwaError as error:
    tell(DpwaError(str(error)))
