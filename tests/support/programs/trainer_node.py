"""A node of a Trainer of Transformers: a tiny GPT-2, accumulation, bf16. See trainer_together."""

import json

import trainer_together
from trainer_together import FOLDER, ROWS, SETTINGS, STEPS, STOP, newest
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from dpwa.integrations.transformers import DpwaCallback


class Together(trainer_together.Together, TrainerCallback):
    """Comes after the gossip, and stops in the middle."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.meet()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.lost(logs["loss"])
            assert logs["dpwa/merges"] == gossip.merges

    def on_step_end(self, args, state, control, **kwargs):
        self.note()
        if state.global_step == STOP:
            raise KeyboardInterrupt


config = GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=1, n_head=2)
arguments = TrainingArguments(
    output_dir=str(FOLDER), max_steps=STEPS, per_device_train_batch_size=2,
    gradient_accumulation_steps=4, bf16=True, learning_rate=3e-3, logging_steps=5, save_steps=10,
    report_to=[], disable_tqdm=True, use_cpu=True, seed=0,
)  # fmt: skip
gossip = DpwaCallback(**SETTINGS)
together = Together(gossip)
trainer = Trainer(
    GPT2LMHeadModel(config), arguments, callbacks=[gossip, together],
    train_dataset=[{"input_ids": row, "labels": row} for row in ROWS],
)  # fmt: skip
checkpoint, stopped = newest("checkpoint-*"), False
saved = {"clock": 0}
if checkpoint:
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    saved = state["stateful_callbacks"]["dpwa"]
try:
    trainer.train(resume_from_checkpoint=checkpoint is not None)
except KeyboardInterrupt:
    stopped = True
    together.serve_until_all_are_here()
together.tell(
    steps=trainer.state.global_step,
    stopped=stopped,
    saved_clock=saved["clock"],
    logged={name for entry in trainer.state.log_history for name in entry if "dpwa/" in name}
    == {"dpwa/consensus_distance", "dpwa/live_peers", "dpwa/merges", "dpwa/wait_share"},
)
