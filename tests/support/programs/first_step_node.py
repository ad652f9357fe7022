"""A loop of Accelerate, or of Lightning, under `together`: prints the weights after each step."""

import os
import sys
import warnings

import torch

rank = int(os.environ["DPWA_RANK"])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(5, 2)
rows = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(rank))


def tell():
    print(f"after a step: {net.weight.double().sum().item():.17f}", flush=True)


def loss_of(inputs):
    return (net(inputs) - 0.5).square().mean()


if sys.argv[1] == "accelerate":
    from accelerate import Accelerator

    from dpwa.integrations.accelerate import DpwaGossip

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 0.03))
    with DpwaGossip(accelerator, model, optimizer, algorithm="together") as gossip:
        gossip.gossip.barrier()
        for inputs in rows:
            accelerator.backward(loss := loss_of(inputs))
            optimizer.step()
            optimizer.zero_grad()
            tell()
            gossip.step(loss)
else:
    warnings.simplefilter("ignore")
    import lightning.pytorch as lightning

    from dpwa.integrations.lightning import DpwaCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 0:
                gossip.gossip.barrier()

        def on_before_zero_grad(self, optimizer):
            tell()  # first before the first step

        def training_step(self, batch):
            return loss_of(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.03)

    gossip = DpwaCallback(algorithm="together")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=4, callbacks=[gossip], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(rows))
    tell()
