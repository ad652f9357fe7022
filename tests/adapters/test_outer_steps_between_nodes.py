"""Outer steps with partners that fail."""

import pytest
import torch
from support.inside import context_of, threads_of
from support.members import members
from support.nodes import config_of, eventually
from support.partners import partner_of

from dpwa.wire.messages import Fetch

TIMEOUT_MS = 1000
WITHOUT_MOMENTUM = [  # else an outer step moves the parameters without inner steps, too
    ("noloco", {}),
    ("local", {"lr": 0.7}),
]


def after_one_step(algorithm, options, broken):
    """Return where one outer step leads to, after so many whose partner broke off."""
    config = config_of(
        2,
        algorithm=algorithm,
        transport="tcp",
        timeout_ms=TIMEOUT_MS,
        **{algorithm: {"period": 2, **options}},
    )
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.round()
        with torch.no_grad():
            member.net.weight.add_(2.0)  # what is trained between two outer steps
        member.round()
        for _ in range(broken):
            member.adapter.update_send()
            partner.announce_only()
            assert member.adapter.update_wait() is None
        member.adapter.update_send()  # not only after another period
        partner.serve(partner.heard(Fetch), 4.0)
        assert member.adapter.update_wait() is not None
        return member.x


@pytest.mark.parametrize(("algorithm", "options"), WITHOUT_MOMENTUM)
def test_a_partner_that_breaks_off_changes_nothing_and_the_step_is_taken_later(algorithm, options):
    quiet = after_one_step(algorithm, options, broken=0)
    assert (quiet != 3.0).all()
    torch.testing.assert_close(after_one_step(algorithm, options, broken=2), quiet)


OUTER = [
    ("local", {"momentum": 0.9, "lr": 0.7}),
    ("local", {}),
    ("noloco", {}),
    ("outer", {}),
]


@pytest.mark.parametrize(("algorithm", "options"), OUTER)
def test_a_round_without_a_slot_to_publish_in_leaves_a_sound_model(algorithm, options):
    settings = {"algorithm": algorithm, algorithm: {"period": 1, **options}}
    config = config_of(2, transport="tcp", timeout_ms=1000, **settings)
    with members(config, [1.0, 1.0]) as (one, other):
        eventually(lambda: threads_of(one.node).tx.reaches("w2"))
        other.round()
        one.round()
        pool, held = context_of(one.node).pool, []
        for _ in range(6):
            held.append(pool.newest())
            one.round()
            assert (one.x == 1.0).all()  # both are where they began
        assert one.node.report()["rounds_skipped"] > 0
        for lease in held:
            lease.release()
