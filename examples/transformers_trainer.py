"""Train a tiny GPT-2 with the Trainer of Transformers. Each node has a different part of the text.

Install, in a clone of dpwa: pip install -c constraints.txt '.[hf]'
Run: dpwa launch -n 2 -- python examples/transformers_trainer.py
"""

import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dpwa.integrations.transformers import DpwaCallback

LENGTH = 64
rank, size = int(os.environ.get("DPWA_RANK", "0")), int(os.environ.get("DPWA_WORLD_SIZE", "1"))
modules = ["argparse", "asyncio", "collections", "json", "pathlib", "socket", "string", "typing"]
text = "".join(__import__(name).__doc__ or "" for name in sorted(modules)) * 4
tokens = torch.tensor(list(text.encode("ascii", "ignore")))
rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
own = [{"input_ids": row, "labels": row} for row in rows[rank::size]]  # private to this node

torch.manual_seed(0)  # all nodes start from the same parameters
config = GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
arguments = TrainingArguments(
    output_dir=sys.argv[1] if len(sys.argv) > 1 else f"trainer-output/{rank}",
    max_steps=60, per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True,
    learning_rate=3e-3, logging_steps=10, save_steps=20, report_to=[], disable_tqdm=True,
    use_cpu=True,
)  # fmt: skip
gossip = DpwaCallback()
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=own, callbacks=[gossip])
trainer.train(resume_from_checkpoint="resume" in sys.argv[2:] or None)
print(gossip.report)
steps = trainer.state.global_step
print(f"{gossip.merges} merges, {gossip.rounds} rounds in {steps} optimizer steps")
