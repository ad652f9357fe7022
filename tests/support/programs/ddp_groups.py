"""ddp_groups.py FOLDER SCENARIO...: two ranks of DistributedDataParallel are one node."""

import hashlib
import sys
import time
from pathlib import Path

import torch
from groups import PATIENCE_S, group_says, play, train_beside_the_late
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.adapters.ranks import replicas
from dpwa.errors import DpwaError

sys.path.append(str(Path(__file__).parents[2]))
from support.optimizers import ScheduleFree

SILENCE_S = 15.0
# Modules are kept until the process ends: the last reference to one destroys its process group, and
# PyTorch's destructor holds the GIL while it waits for Gloo's thread, which may wait for the GIL to
# drop the tensors of the last broadcast (pytorch/pytorch#56297).
KEPT = []


def module(value):
    """A module with parameters and buffers of all kinds, the parameters all of one value."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1).double())
    net[2].weight.requires_grad = False
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    return net


class Cast(nn.Module):
    """Goes from one dtype to the other in between."""

    def __init__(self, value):
        super().__init__()
        self.net = module(value)

    def forward(self, inputs):
        return self.net[2](self.net[1](self.net[0](inputs)).double())


def digest(tensors):
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


def told(net, gossip):
    return {
        "digest": digest(net.state_dict().values()),
        "value": net.module.net[0].weight[0, 0].item(),
        "running_mean": net.module.net[1].running_mean[0].item(),
        "clock": gossip.clock,
        "updates": gossip.updates,
        "peers": gossip.peers,
        "place": [gossip.rank, gossip.world_size, gossip.members],
    }


def gossip_until_alike(net, gossip, rank, folder, losses=(1.0, 3.0)):
    """Gossip until both groups agree; go on until all ranks have seen that."""
    end, has_agreed = time.monotonic() + PATIENCE_S, False
    while time.monotonic() < end:
        gossip.update_send(losses[rank])
        merge = gossip.update_wait()
        has_agreed |= merge is not None and merge.consensus_distance < 1e-7
        if has_agreed:
            (folder / f"{gossip.name}-{rank}").touch()
        if group_says(len(list(folder.iterdir())) == 4):
            return has_agreed
    return False


def gossip(net, name, rank, config, folder):
    net.module.net[1].running_mean.fill_(float(name[1:]))
    with DpwaPyTorchAdapter(net, name, config) as adapter:
        has_agreed = gossip_until_alike(net, adapter, rank, folder)
        found = {**told(net, adapter), "has_agreed": has_agreed, "repr": repr(adapter)}
        if rank == 0:
            found["loss"] = adapter.connection.node.rounds.progress.loss
    try:
        adapter.update_send(0.1)
    except DpwaError as error:
        found["after close"] = type(error).__name__
    return found


def step(net, name, rank, config, folder):
    """Train on different data on each rank with a GossipOptimizer; return what each step merged."""
    inner = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)
    with DpwaPyTorchAdapter(net, name, {**config, "lr_spread": "linear"}) as adapter:
        optimizer = GossipOptimizer(inner, adapter)
        torch.manual_seed(rank)
        merged, end, digests = 0, time.monotonic() + PATIENCE_S, []
        while len(digests) < 50 and time.monotonic() < end:
            optimizer.zero_grad()
            loss = net(torch.randn(8, 3)).square().mean()
            loss.backward()
            optimizer.step(loss=loss.detach())
            merged += optimizer.last_merge is not None
            if len(digests) == 30:
                (folder / f"{name}-{rank}").touch()
            while len(digests) == 30 and len(list(folder.iterdir())) < 4:
                time.sleep(0.05)  # the other group may come late
            digests.append(digest(net.parameters()))
        return {"merged": merged, "digests": digests, "lr": inner.param_groups[0]["lr"]}


def refused(net, name, rank, config, folder):
    found = {}

    def attempt(what, make):
        try:
            made = make()
            found[what] = "" if made is None else repr(made)
        except DpwaError as error:
            found[what] = f"{type(error).__name__}: {error}"

    elsewhere = "w1" if name == "w2" else "w2"
    attempt("names", lambda: DpwaPyTorchAdapter(net, (name, elsewhere)[rank], config))
    attempt("name", lambda: DpwaPyTorchAdapter(net, (name, "nobody")[rank], config))
    options = ({"optimizer": torch.optim.SGD(net.parameters())}, {})[rank]
    attempt("optimizer", lambda: DpwaPyTorchAdapter(net, name, config, **options))
    first = DpwaPyTorchAdapter(net, name, config)
    attempt("port", lambda: DpwaPyTorchAdapter(net, name, config))
    attempt("loss", lambda: first.update_send((0.1, "high")[rank]))
    attempt("collective", lambda: None if rank == 0 else first.barrier())
    attempt("connection", lambda: None if rank == 0 else first.connection.node)
    attempt("leader", lambda: None if rank == 0 else first.leader)
    attempt("center", lambda: None if rank == 0 else first.center())
    first.close()
    attempt("closed", lambda: first.update_send(0.1))
    return found


def unfit(net, name, rank, config, folder):
    """The state of the optimizer cannot be taken over: no group is like one with NaN."""
    return late(net, name, rank, config, folder, best_loss=float("nan"))


def late(net, name, rank, config, folder, **settings):
    is_late, ready = name == "w2", folder / "ready"
    inner = torch.optim.Adam(net.parameters(), lr=0.01)
    inner.param_groups[0].update(settings)
    config = {**config, "initial_state": "peers", "fetch_probability": 0.0}
    while is_late and not ready.exists():
        time.sleep(0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 0.5**step)
    given = {"optimizer": inner, "scheduler": schedule}
    with DpwaPyTorchAdapter(net, name, config, **given) as adapter:

        def train(_):
            inner.zero_grad()
            net(torch.ones(4, 3)).sum().backward()
            inner.step()
            schedule.step()

        if not is_late:
            train_beside_the_late(folder, 5, train, adapter)
        found = told(net, adapter)
        found["optimizer"] = float(sum(s["step"] for s in inner.state.values()))
        found["schedule"] = schedule.last_epoch, schedule.get_last_lr()
        if is_late:
            (folder / f"done-{rank}").touch()
        return found


def schedule_free(net, name, rank, config, folder):
    """Both groups train with an iterate of their own, which all ranks switch alike."""
    optimizer = ScheduleFree([p for p in net.parameters() if p.requires_grad], lr=0.1)
    optimizer.train()
    digests = []
    with DpwaPyTorchAdapter(net, name, config, optimizer=optimizer) as adapter:
        torch.manual_seed(rank)
        gossip_until_alike(net, adapter, rank, folder)
        for _ in range(10):
            optimizer.zero_grad()
            net(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            adapter.step(0.5)
            digests.append(digest(net.parameters()))
        adapter.finish()
    modes = [group["train_mode"] for group in optimizer.param_groups]
    values = [v for p in net.parameters() if p.requires_grad for v in p.flatten().tolist()]
    return {"digests": [*digests, digest(net.parameters())], "modes": modes, "values": values}


def finish(net, name, rank, config, folder):
    replicas.STILL_AT_WORK_S = 0.5
    with DpwaPyTorchAdapter(net, name, config) as adapter:
        gossip_until_alike(net, adapter, rank, folder)
        end = time.monotonic() + 1.3 * SILENCE_S
        while not group_says(name == "w1" or time.monotonic() > end):
            adapter.step(1.0)
            time.sleep(0.02)
        report = adapter.finish()
        return {
            "digest": digest(net.state_dict().values()),
            "took_part": report.took_part,
            "waited_s": report.waited_s,
        }


def played(scenario):
    def play_with_module(name, rank, config, folder):
        net = DistributedDataParallel(Cast(float(name[1:])))
        KEPT.append(net)
        return scenario(net, name, rank, config, folder)

    return play_with_module


if __name__ == "__main__":
    scenarios = (gossip, step, refused, late, unfit, schedule_free, finish)
    play(
        {scenario.__name__: played(scenario) for scenario in scenarios},
        timeout_s=SILENCE_S if "finish" in sys.argv else PATIENCE_S,
        interpolation="constant",
    )
