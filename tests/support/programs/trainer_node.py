"""A node of a Trainer: a tiny GPT-2, accumulation, bf16; it waits for its peer before it begins.

python trainer_node.py FOLDER STEPS STOP: at step STOP, if it is not 0, it stops as by Ctrl-C, and
goes on from the newest checkpoint in FOLDER the next time.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from dpwa.integrations.transformers import DpwaCallback

folder, steps, stop = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


class Together(TrainerCallback):
    """Begins when the peer is connected; notes losses; stops in the middle."""

    losses = ()
    first_clock = None

    def on_train_begin(self, args, state, control, **kwargs):
        node = gossip.gossip.connection.node
        end = time.monotonic() + 60
        while any(link.value != "up" for link in node.links.values()) and time.monotonic() < end:
            time.sleep(0.01)
        self.first_clock = gossip.gossip.clock

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses += (logs["loss"],)
            assert logs["dpwa/merges"] == gossip.merges

    def on_step_end(self, args, state, control, **kwargs):
        self.outcomes = [p["outcomes"] for p in gossip.gossip.connection.node.report()["peers"]]
        if state.global_step == stop:
            raise KeyboardInterrupt


torch.manual_seed(0)
data = torch.tensor(list(__import__("argparse").__doc__.encode()) * 8)[: 64 * 64].view(64, 64)
rows = [{"input_ids": row, "labels": row} for row in data]
config = GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=1, n_head=2)
arguments = TrainingArguments(
    output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2,
    gradient_accumulation_steps=4, bf16=True, learning_rate=3e-3, logging_steps=5, save_steps=10,
    report_to=[], disable_tqdm=True, use_cpu=True,
)  # fmt: skip
gossip = DpwaCallback(timeout_ms=5000, initial_state="own", repeat="merge", log_level="error")
together = Together()
trainer = Trainer(
    GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[gossip, together]
)
stopped = False
try:
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
except KeyboardInterrupt:
    stopped = True
    gossip.gossip.finish()  # serves the other until it has come as far
    gossip.gossip.close()
told = {
    "steps": trainer.state.global_step,
    "merges": gossip.merges,
    "updates": gossip.gossip.updates,
    "losses": together.losses,
    "first_clock": together.first_clock,
    "stopped": stopped,
    "outcomes": together.outcomes,
    "has_process_group": torch.distributed.is_initialized(),
    "logged": any("dpwa/merges" in entry for entry in trainer.state.log_history),
}
print(json.dumps(told), flush=True)
