"""Train a model of text with Lightning's Trainer. Each node has a different part of the text.

Install, in a clone of dpwa: pip install -c constraints.txt '.[lightning]'
Run: dpwa launch -n 2 -- python examples/lightning_trainer.py
"""

import os

import lightning.pytorch as lightning
import torch
from torch import nn

from dpwa.integrations.lightning import DpwaCallback

rank, size = int(os.environ.get("DPWA_RANK", "0")), int(os.environ.get("DPWA_WORLD_SIZE", "1"))
modules = ["argparse", "asyncio", "collections", "json", "pathlib", "socket", "string", "typing"]
text = "".join(__import__(name).__doc__ or "" for name in modules)
own = torch.tensor(list(text.encode("ascii", "ignore"))).unfold(0, 9, 1)[rank::size]  # private


class NextLetter(lightning.LightningModule):  # noqa: D101
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 128))

    def training_step(self, batch):  # noqa: D102
        return nn.functional.cross_entropy(self.net(batch[:, :8]), batch[:, 8])

    def configure_optimizers(self):  # noqa: D102
        return torch.optim.Adam(self.parameters(), lr=3e-3)


lightning.seed_everything(0)  # all nodes start from the same parameters
gossip = DpwaCallback()
options = {"accelerator": "cpu", "devices": 1, "precision": "bf16-true", "logger": False}
trainer = lightning.Trainer(**options, enable_checkpointing=False, max_steps=60, callbacks=[gossip])
trainer.fit(NextLetter(), torch.utils.data.DataLoader(own, batch_size=32, shuffle=True))
print(gossip.report)
print(f"{gossip.merges} merges, {gossip.rounds} rounds in {trainer.global_step} optimizer steps")
