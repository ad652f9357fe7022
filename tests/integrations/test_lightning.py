"""Gossip within the Trainer of Lightning, the real one."""

import sys
import warnings

import pytest
import torch
from support import trainers
from support.extras import needs
from support.nodes import config_of

from dpwa.errors import ClosedError, UserError

pytestmark = needs("lightning")
EXAMPLE = trainers.EXAMPLES / "lightning_trainer.py"
BATCHES = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=2)


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(tmp_path):
    trainers.assert_merges_at_every_step_and_goes_on_after_an_interruption(
        "lightning_node.py", tmp_path
    )


def test_the_example_runs(tmp_path):
    printed = trainers.launch(tmp_path, EXAMPLE)
    trainers.assert_trained_to_the_end(printed, 60)
    assert printed.count("finished together with") == 2
    assert not list(tmp_path.iterdir())


def test_a_strategy_of_several_processes_is_refused_by_name(tmp_path):
    script = tmp_path / "script.py"
    text = EXAMPLE.read_text().replace('"devices": 1', '"devices": 2, "strategy": "ddp"')
    script.write_text(text)
    done = trainers.run(tmp_path, sys.executable, script)
    assert done.returncode != 0
    assert "the Trainer has DDPStrategy on 2 device(s) and 1 machine(s)" in done.stderr


def module_of(optimizers=1, fails_at=None):
    """Return what trains a row of weights; with several optimizers, by hand."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.nets = torch.nn.ModuleList(torch.nn.Linear(3, 1) for _ in range(optimizers))
            self.automatic_optimization = optimizers == 1

        def training_step(self, batch, batch_idx):
            if batch_idx == fails_at:
                raise ZeroDivisionError
            if self.automatic_optimization:
                return self.nets[0](batch).square().mean()
            for net, optimizer in zip(self.nets, self.optimizers(), strict=True):
                optimizer.zero_grad()
                self.manual_backward(net(batch).square().mean())
                optimizer.step()
            return None

        def configure_optimizers(self):
            return [torch.optim.SGD(net.parameters(), lr=1e-3) for net in self.nets]

    return Module()


def fit(callback, module, **options):
    """Train one of two nodes, over six batches; the other is not there."""
    from lightning.pytorch import Trainer

    trainer = Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(module, BATCHES)
    return trainer


def callback_of(**settings):
    from dpwa.integrations.lightning import DpwaCallback

    alone = {"timeout_ms": 1, "initial_state": "own", "log_level": "error"}
    return DpwaCallback(config=config_of(2, **{**alone, **settings}), name="w2", finish=False)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice, and of what it is built on
        yield


def test_several_optimizers_that_step_in_one_batch_are_one_step_of_gossip():
    callback = callback_of()
    trainer = fit(callback, module_of(optimizers=2))
    assert trainer.global_step == 12  # each optimizer is counted
    assert callback.gossip.updates == 6
    assert trainer.callback_metrics["dpwa/clock"] == callback.gossip.clock == 6


def test_the_loss_is_that_of_the_batch_though_gradients_are_accumulated():
    callback, module = callback_of(), module_of()
    torch.nn.init.zeros_(module.nets[0].weight)
    torch.nn.init.constant_(module.nets[0].bias, 3.0)
    fit(callback, module, accumulate_grad_batches=6)
    assert callback.gossip.updates == 1
    assert callback.gossip.connection.node.rounds.progress.loss == 9.0


def test_a_training_that_fails_closes_the_node():
    callback = callback_of()
    with pytest.raises(ZeroDivisionError):
        fit(callback, module_of(fails_at=3))
    assert callback.gossip.updates == 3
    with pytest.raises(ClosedError):
        callback.gossip.step()


def test_learning_rates_that_differ_are_refused_and_the_node_is_closed():
    callback = callback_of(lr_spread="linear")
    with pytest.raises(UserError, match="`lr_spread`"):
        fit(callback, module_of())


def test_a_trainer_that_only_tests_has_no_node():
    from lightning.pytorch import Trainer

    callback, module = callback_of(), module_of()
    module.test_step = lambda batch, batch_idx: None
    Trainer(accelerator="cpu", logger=False, callbacks=[callback], enable_progress_bar=False).test(
        module, BATCHES
    )
    assert callback.gossip is None
    assert callback.state_dict() == callback.figures() == {}
