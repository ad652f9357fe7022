"""sharded_groups.py FOLDER SCENARIO...: two ranks, a model of `fully_shard`, are one member."""

import hashlib
import time
from functools import partial

import torch
import torch.distributed as dist
from groups import PATIENCE_S, group_says, play, train_beside_the_late
from torch import nn
from torch.distributed.fsdp import fully_shard

import dpwa
from dpwa.errors import DpwaError, MismatchError
from dpwa.transport.link import LinkState


class Tied(nn.Module):
    """An embedding that is the output layer as well, with one layer in between."""

    def __init__(self, dtype):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, dtype=dtype)
        self.between = nn.Linear(6, 6, dtype=dtype)
        self.norm = nn.BatchNorm1d(6, dtype=dtype)
        self.out = nn.Linear(6, 11, bias=False, dtype=dtype)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.norm(torch.tanh(self.between(self.embedding(tokens)))))


def whole(name, dtype=torch.float32):
    torch.manual_seed(int(name[1:]))
    return Tied(dtype)


def sharded(name, dtype=torch.float32, **frozen):
    net = whole(name, dtype)
    for each, value in frozen.items():
        net.register_parameter(each, nn.Parameter(value, requires_grad=False))
    fully_shard(net.between)
    fully_shard(net)
    return net


def full(net):
    return {name: p.detach().full_tensor().clone() for name, p in net.named_parameters()}


def digest(net):
    found = hashlib.sha256()
    for parameter in net.parameters():
        found.update(parameter.detach().to_local().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(net, optimizer, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 11, (8,), generator=generator)
    loss = nn.functional.cross_entropy(net(tokens), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def evaluate(net):
    """A forward pass, after which `fully_shard` may leave whole parameters behind."""
    net.eval()
    with torch.no_grad():
        net(torch.arange(11))
    net.train()


def until(condition, wait):
    end = time.monotonic() + PATIENCE_S
    while not group_says(condition() or time.monotonic() > end):
        wait()


def merge(name, rank, config, folder, dtype="float32"):
    dtype = getattr(torch, dtype)
    net, config = sharded(name, dtype), {**config, "initial_state": "own"}
    if name == "w2":
        config["fetch_probability"] = 0.0
    with dpwa.connect(net, config=config, name=name) as gossip:
        before = full(net)
        until(lambda: (folder / "w1").exists(), lambda: once(gossip, name, folder))
        found = full(net)
    return {
        "began_with": furthest(before, whole_values(name, dtype)),
        "is_mean": furthest(found, mean_of_both(dtype)),
        "moved": furthest(found, before),
    }


def whole_values(name, dtype):
    return {n: p.detach().float() for n, p in whole(name, dtype).named_parameters()}


def mean_of_both(dtype):
    other = whole_values("w2", dtype)
    return {n: 0.5 * p + 0.5 * other[n] for n, p in whole_values("w1", dtype).items()}


def furthest(found, expected):
    assert found.keys() == expected.keys()
    return max(float((found[n].float() - p.float()).abs().max()) for n, p in expected.items())


def once(gossip, name, folder):
    # w2 must not be so far ahead that w1 takes over its parameters in full, nor w1, which waits
    # for it, so far ahead that those of w2 are not worth merging.
    is_ready = folder / "w2 has published"
    if name == "w2" and gossip.updates >= 3:
        is_ready.touch()
    if name == "w1" and gossip.connection.node.links["w2"] is LinkState.UP:
        (folder / f"rank {dist.get_rank()} is connected").touch()
    is_met = is_ready.exists() and len(list(folder.glob("* is connected"))) == 2
    is_over = (folder / "w1").exists() if name == "w1" else gossip.updates >= 3
    if is_over or (name == "w1" and not group_says(is_met)):
        time.sleep(0.01)
        return
    gossip.update_send(1.0)
    merged = gossip.update_wait()
    if merged is not None:
        (folder / name).touch()
    time.sleep(0.01)


def merge_bf16(name, rank, config, folder):
    return merge(name, rank, config, folder, "bfloat16")


def finish(name, rank, config, folder):
    """Train on other data on each rank, look at the model in between, and end together."""
    net = sharded(name, frozen=torch.zeros(4, 6))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    merges, losses = [], []
    with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
        for step in range(60):
            loss = train(net, optimizer, rank, step)
            losses.append(float(loss))
            if step % 10 == 9:
                evaluate(net)
            found = gossip.step(loss)
            if found is not None:
                merges.append(
                    [found.peer, found.factor, found.consensus_distance, found.peer_clock]
                )
            if step == 30:
                (folder / f"{name}-{rank}").touch()
                until(lambda: len(list(folder.iterdir())) == 4, lambda: time.sleep(0.02))
        until(lambda: len(list(folder.iterdir())) == 4, lambda: time.sleep(0.02))
        if (name, rank) == ("w1", 1):  # one shard of what is not averaged
            net.frozen.to_local().fill_(1.0)
        report = gossip.finish()
        net.frozen.to_local().zero_()
        return {
            "differing": report.differing,
            "digest": digest(net),
            "merges": merges,
            "losses": losses,
            "took_part": report.took_part,
            "has_finished": gossip.connection.node.report()["ending"]["is_over"],
            "clock": gossip.clock,
        }


def clip(name, rank, config, folder):
    """Merges are clipped by the distance over all shards."""
    options = {"quantile": 0.5, "window": 5}
    return finish(name, rank, {**config, "robust": "clip", "clip": options}, folder)


def late(name, rank, config, folder):
    net = sharded(name)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    config = {**config, "fetch_probability": 0.0}
    if name == "w2":
        until(lambda: (folder / "ready").exists(), lambda: time.sleep(0.05))
    with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
        if name == "w2":
            found = told(net, optimizer, gossip)
            train(net, optimizer, rank, 0)  # the optimizer works with what came
            (folder / f"done-{rank}").touch()
            return found
        train_beside_the_late(folder, 20, partial(train, net, optimizer, rank), gossip)
        return told(net, optimizer, gossip)


def told(net, optimizer, gossip):
    moments = hashlib.sha256()
    for parameter in net.parameters():
        state = optimizer.state[parameter]
        moments.update(state["exp_avg"].to_local().contiguous().numpy().tobytes())
        moments.update(repr(float(state["step"])).encode())
    return {"digest": digest(net), "optimizer": moments.hexdigest(), "updates": gossip.updates}


def checkpoints(name, rank, config, folder):
    options = {"dir": str(folder), "every_steps": 10, "keep": 5}
    config = {**config, "fetch_probability": 0.0, "initial_state": "own", "checkpoint": options}
    digests = {}
    net = sharded(name)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
        for step in range(35):
            train(net, optimizer, rank, step)
            digests[gossip.updates + 1] = told(net, optimizer, gossip)["optimizer"], digest(net)
            gossip.step(1.0)
            time.sleep(0.01)  # that there is time to write
    kept = sorted((folder / f"rank{rank}").glob(f"{name}-*.json"))
    if rank == 1:
        kept[-1].unlink()  # as if it had died before the last was complete
    dist.barrier()
    again = sharded(name)
    optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    with dpwa.connect(again, optimizer, config=config, name=name) as gossip:
        found = told(again, optimizer, gossip)
        is_same = digests[gossip.updates] == (found["optimizer"], found["digest"])
        return {"kept": len(kept), "updates": gossip.updates, "is_same": is_same}


def error_of(call):
    try:
        call()
    except DpwaError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(name, rank, config, folder):
    """What cannot be is refused on all ranks, by name."""
    found, net = {}, sharded(name)
    nodes = config["nodes"]

    def attempt(what, changes, own=name):
        changed = {**config, **changes}
        found[what] = error_of(lambda: dpwa.connect(net, config=changed, name=own).close())

    attempt("algorithm", {"algorithm": "symmetric"})
    attempt("leader", {"algorithm": "lsgd"})
    attempt("fraction", {"fraction": 0.5})
    attempt("topology", {"topology": "one_peer_exponential"})
    attempt("ports", {"nodes": [nodes[0], {**nodes[1], "port": nodes[0]["port"] + 1}]})
    with dpwa.connect(net, config=config, name=name) as gossip:
        found["seconds"] = error_of(lambda: gossip.finish(seconds=-1.0))
    found["one rank"] = called_after_close(net, name, rank, config)
    found["peers refused"] = called_with_peers_refused(net, name, rank, config)
    plain = nn.Linear(4, 4)
    with dpwa.connect(plain, config={**config, **apart(nodes, rank)}, name=name) as gossip:
        fully_shard(plain)
        found["later"] = error_of(gossip.update_send)
    return found


def called_after_close(net, name, rank, config):
    """An adapter that one rank alone has closed is of no use for the others, either."""
    with dpwa.connect(net, config=config, name=name) as gossip:
        if rank == 1:
            gossip.close()
        return error_of(lambda: gossip.update_send(1.0))


def called_with_peers_refused(net, name, rank, config):
    """One rank finds all peers refused, a moment before the other."""

    def refuse():
        raise MismatchError("every peer is refused")

    with dpwa.connect(net, config=config, name=name) as gossip:
        if rank == 1:
            gossip.connection.node.rounds.look_for_refusals = refuse
        return error_of(lambda: gossip.update_send(1.0))


def apart(nodes, rank):
    """Each rank for itself, at a port of its own."""
    return {"nodes": [{**node, "port": node["port"] + rank} for node in nodes]}


if __name__ == "__main__":
    play(globals())
