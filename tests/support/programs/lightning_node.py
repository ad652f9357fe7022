"""A node of a Trainer of Lightning: accumulation, bf16. See trainer_together.

Rank 0 uses the package pytorch_lightning, as if lightning was not installed.
"""

import os
import sys

import torch
import trainer_together
from trainer_together import FOLDER, ROWS, SETTINGS, STEPS, STOP, NextLetter, newest

if os.environ["DPWA_RANK"] == "0":
    sys.modules["lightning"] = None
    import pytorch_lightning as lightning
else:
    import lightning.pytorch as lightning

from dpwa.integrations.lightning import DpwaCallback


class Together(trainer_together.Together, lightning.Callback):
    """Comes before the gossip, and stops in the middle."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.first_clock is None:
            self.meet()
        if STOP and trainer.global_step == STOP:
            raise KeyboardInterrupt

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.lost(float(outputs["loss"]) * trainer.accumulate_grad_batches)

    def on_train_end(self, trainer, pl_module):
        self.note()

    def on_exception(self, trainer, pl_module, exception):
        if isinstance(exception, KeyboardInterrupt):
            self.note()
            self.serve_until_all_are_here()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = NextLetter()

    def training_step(self, batch, batch_idx):
        loss = self.net(batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


gossip = DpwaCallback(**SETTINGS)
together = Together(gossip)
checkpoint, stopped = newest("*.ckpt"), False
logger = lightning.loggers.CSVLogger(FOLDER, flush_logs_every_n_steps=1)
saving = lightning.callbacks.ModelCheckpoint(
    FOLDER, "{step}", every_n_train_steps=10, save_top_k=-1
)
trainer = lightning.Trainer(
    max_steps=STEPS, accumulate_grad_batches=4, precision="bf16-mixed", accelerator="cpu",
    log_every_n_steps=5, logger=logger, callbacks=[together, gossip, saving],
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
try:
    trainer.fit(Module(), torch.utils.data.DataLoader(ROWS, batch_size=2), ckpt_path=checkpoint)
except SystemExit:  # what Lightning makes of Ctrl-C
    stopped = True
saved = torch.load(checkpoint)["callbacks"]["DpwaCallback"] if checkpoint else {"clock": 0.0}
together.tell(
    steps=trainer.global_step,
    stopped=stopped,
    saved_clock=saved["clock"],
    logged="dpwa/merges" in newest("lightning_logs/*/metrics.csv").read_text(),
)
