"""A node of a loop of Accelerate: accumulation, bf16. See trainer_together."""

import torch
from accelerate import Accelerator
from trainer_together import FOLDER, ROWS, SETTINGS, STEPS, STOP, NextLetter, Together, newest

from dpwa.integrations.accelerate import DpwaGossip

accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16", cpu=True)
net = NextLetter()
model, optimizer, batches = accelerator.prepare(
    net, torch.optim.Adam(net.parameters(), lr=3e-3), torch.utils.data.DataLoader(ROWS, 2)
)
gossip = DpwaGossip(accelerator, model, optimizer, **SETTINGS)
accelerator.register_for_checkpointing(gossip)
together = Together(gossip)
checkpoint, steps, stopped = newest("step=*"), 0, False
if checkpoint is not None:
    accelerator.load_state(checkpoint)
    steps = int(checkpoint.name.partition("=")[2])
saved = gossip._resumed or (0.0, 0)
figures = {}
try:
    with gossip:
        together.meet()
        while steps < STEPS:
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    gossip.step(loss)
                together.lost(float(loss))
                if not accelerator.sync_gradients:
                    continue
                steps += 1
                together.note()
                figures = gossip.figures()
                if steps % 10 == 0:
                    accelerator.save_state(FOLDER / f"step={steps}")
                if STOP and steps == STOP:
                    together.serve_until_all_are_here()
                    raise KeyboardInterrupt
                if steps == STEPS:
                    break
except KeyboardInterrupt:
    stopped = True
together.tell(
    steps=steps, stopped=stopped, saved_clock=saved[0], logged="dpwa/consensus_distance" in figures
)
