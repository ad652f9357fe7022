"""Donors that hand on what nobody can take over: the next one is asked, and the trainer goes on."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually
from support.state_answers import LAYOUT, Donor, joiner_of
from support.state_donors import ALONE, adapter_of, are_equal, nodes, state_of, training
from torch import nn

from dpwa.adapters.tensor_images import copied, layout_of
from dpwa.clock import SystemClock
from dpwa.state.replaced_parts import Target, UnfitStateError
from dpwa.state.restore import StateRestore
from dpwa.transport.link import LinkState


@pytest.mark.parametrize(
    ("lie", "is_told"),
    [
        ("optimizer", "exp_avg in the state of parameter 0 is float32[7], expected float32[2, 4]"),
        ("model", "the state has parameters that are not finite"),
    ],
)
def test_a_lie_is_refused_and_the_next_donor_asked(monkeypatch, caplog, lie, is_told):
    config = config_of(3, **ALONE, state_donors=1, initial_state="own")
    nets = [nn.Linear(4, 2) for _ in range(3)]
    adams = [torch.optim.Adam(net.parameters()) for net in nets]
    step(nets[0], adams[0])
    step(nets[2], adams[2])
    with contextlib.ExitStack() as stack, lying_donor(nets[2], adams[2], config, lie):
        (honest,) = stack.enter_context(
            nodes(adapter_of(nets[0], "w2", config, optimizer=adams[0]))
        )
        (joiner,) = stack.enter_context(nodes(adapter_of(nets[1], "w3", config)))
        blame = StateRestore._blame

        def blame_and_let_the_honest_one_train(restore, donors):
            blame(restore, donors)
            stack.enter_context(training(honest))
            eventually(lambda: honest.clock >= 2)  # it tells its clock after its first update

        monkeypatch.setattr(StateRestore, "_blame", blame_and_let_the_honest_one_train)
        node = joiner.connection.node
        eventually(lambda: [*node.links.values()] == [LinkState.UP] * 2)
        joiner.connection.states.start(joiner._training.model(), "peers")
        joiner.include_optimizer(adams[1])
        assert node.report()["state"]["refused"] == ["w1"]
    assert f"the {lie} of w1 cannot be used: {is_told}" in caplog.text
    if lie == "model":
        assert are_equal(state_of(nets[0]), state_of(nets[1]))
    kept = [adam.state_dict()["state"] for adam in adams]
    assert all(are_equal(kept[0][index], kept[1][index]) for index in (0, 1))
    step(nets[1], adams[1])  # which raises nothing


@contextlib.contextmanager
def lying_donor(net, optimizer, config, lie):
    """A node w1, far ahead of all others, that lies to nodes that ask for its state."""
    with nodes(adapter_of(net, "w1", config, optimizer=optimizer)) as (liar,):
        capture = liar._training.capture

        def lying():
            parts = capture()
            if lie == "model":
                parts["model"].image[len(parts["model"].layout.header) :] = 0xFF  # NaN
                return parts
            named = {name: torch.ones(7) for name in ("0.exp_avg", "0.exp_avg_sq")}
            named["0.step"] = torch.tensor(9.0)
            layout = layout_of(named.items())
            image = copied(layout, named.items())
            return {**parts, lie: replace(parts[lie], layout=layout, image=image)}

        liar._training.capture = lying
        liar.connection.node.rounds.resume(1000.0, 1000)
        with training(liar):
            eventually(lambda: liar.clock > 1000.0)
            yield


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()


LIE = 9


def began(donors, most_donors):
    """What a node begins with, of donors by name, and who was refused."""
    loaded = []

    def load(image, numbers):
        values = set(np.unique(LAYOUT.tensors_of(image)))
        if LIE in values:
            raise UnfitStateError("it is a lie")
        loaded.append(values)

    joiner = joiner_of(donors, most_donors)
    beginning = StateRestore("w0", joiner, None, SystemClock(), 10.0)
    target = Target("model", LAYOUT.tensors, LAYOUT, LAYOUT.nbytes, load)
    origin = beginning.start(target, "peers")
    return origin, loaded, beginning.refused


@pytest.mark.parametrize("most_donors", [1, 2, 3])
def test_of_many_donors_only_those_that_lie_are_refused(most_donors):
    donors = {"w1": Donor(LIE), "w2": Donor(2), "w3": Donor(LIE), "w4": Donor(2)}
    origin, loaded, refused = began(donors, most_donors)
    assert loaded == [{2}]
    assert set(origin.donors) <= {"w2", "w4"}
    assert set(refused) <= {"w1", "w3"}


def test_where_all_lie_the_node_begins_with_its_own():
    donors = {name: Donor(LIE) for name in ("w1", "w2", "w3")}
    assert began(donors, 2) == (None, [], ("w1", "w2", "w3"))


def test_the_highest_of_all_clocks_stays_one():
    origin, loaded, _ = began({"w1": Donor(1, clock=2.0**53), "w2": Donor(2, clock=2.0**53)}, 2)
    assert len(loaded) == 1
    assert origin.clock <= 2.0**53
