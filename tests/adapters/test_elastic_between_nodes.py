"""Elastic averaging between real nodes: what is served, late and lost partners, and agreement."""

import numpy as np
import pytest
import torch
from support.inside import fingerprint_of
from support.members import members
from support.nodes import config_of
from support.partners import partner_of
from support.requests import fetch_of

from dpwa.wire.messages import Fetch, SnapshotHeader

TIMEOUT_MS = 1000
ALPHA, BETA = 0.45, 0.9  # of two nodes


def of(period, count=2, **settings):
    return config_of(count, algorithm="elastic", elastic={"period": period}, **settings)


def served(member, partner):
    """What a peer gets of a node."""
    fingerprint = fingerprint_of(member)
    partner.say(fetch_of(fingerprint, name=partner.name))
    answers = [partner.answered() for _ in range(2)]
    assert isinstance(answers[0], SnapshotHeader)
    return np.frombuffer(answers[1][1], np.float64)


def elastic(x, c):
    return x - ALPHA * (x - c), c + BETA * (x - c)


@pytest.mark.parametrize("broken", [0, 2])
def test_centers_are_what_is_served_and_a_partner_that_breaks_off_changes_nothing(broken):
    config = of(3, transport="tcp", timeout_ms=TIMEOUT_MS)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        member.round()
        with torch.no_grad():
            member.net.weight.add_(2.0)
        assert (served(member, partner) == 1.0).all()  # what it began with
        member.round()  # the third: an elastic step, alone
        x, c = elastic(3.0, 1.0)
        assert member.x.numpy() == pytest.approx(x)
        assert (served(member, partner) == 1.0).all()  # until the next update
        for _ in range(broken):  # not only after another period
            member.adapter.update_send()
            assert served(member, partner) == pytest.approx(c)
            partner.announce_only()
            assert member.adapter.update_wait() is None
            assert member.x.numpy() == pytest.approx(x)
        member.adapter.update_send()
        partner.serve(partner.heard(Fetch), 4.0)
        if broken == 2:  # the sixth: the center has moved once more, as if it had mixed before
            x, c = elastic(x, (c + 4.0) / 2)
        else:
            c = (c + 4.0) / 2
        assert member.adapter.update_wait() is not None
        assert member.x.numpy() == pytest.approx(x)
        assert member.node.rounds.algorithm.center.tensors[0].numpy() == pytest.approx(c)
