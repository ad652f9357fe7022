"""Functions with which a node joins a group, or rejoins a group that has excluded the node.

Each function waits on the thread of its caller.
"""

from __future__ import annotations

from dpwa.clock import Deadline
from dpwa.collectives.group import Group, Phase
from dpwa.collectives.pulling import LOOK_EVERY_S
from dpwa.errors import LeftBehindError, PeerLost

ASK_EVERY_S = 0.2
MEET_S = 5.0  # a node that begins alone waits this long for others, because joining takes seconds


def begin_together(group: Group, timeout_s: float) -> None:
    """Wait for other new nodes before the first collective, and form a group with them."""
    deadline = Deadline(group.runtime, min(MEET_S, timeout_s / 2))
    while group.may_meet() and not deadline.expired():
        group.check_open()
        with group.lock:
            group.changed.wait(LOOK_EVERY_S)
    group.meet()


def get_in(group: Group, timeout_s: float) -> None:
    """Rejoin the group if the group has excluded this node. This calls no collective.

    Raises PeerLost if there is no other node, so that this node continues alone. Raises
    LeftBehindError if the other nodes do not admit this node.
    """
    with group.call_lock:
        group.told()
        wait_to_get_in(group, Deadline(group.runtime, timeout_s), timeout_s)


def wait_to_get_in(group: Group, deadline: Deadline, timeout_s: float) -> None:
    """Request admission until a node admits this node. Without other nodes, continue alone."""
    own = group.own.name
    while group.is_evicted:
        group.check_open()
        reached = group.ask_to_join()
        group.start_anew()
        with group.lock:
            patience_s = min(ASK_EVERY_S, deadline.remaining_s())
            group.changed.wait_for(lambda: not group.is_evicted, patience_s)
        if group.is_evicted and deadline.expired():
            if not group.discovery.knows_views:
                group.start_alone()
                raise PeerLost(
                    group.others, "no other node answers, so this node continues alone [DPWA-E146]"
                )
            bound = f"within {timeout_s:g} s"
            if reached:
                asked = ", ".join(reached)
                raise LeftBehindError(
                    (own,),
                    f"no node admitted {own} to the collectives {bound}. {own} asked these nodes: "
                    f"{asked}. If their steps take longer, raise `timeout_s` of the call, or "
                    "`collective_timeout_s` [DPWA-E147]",
                )
            raise LeftBehindError(
                (own,),
                f"no node admitted {own} again {bound}, and {own} cannot reach any other node now. "
                "Check the network [DPWA-E167]",
            )


def ask_in(group: Group, patience_s: float) -> bool:
    """Request admission if the group has excluded this node. Return whether this node is a member.

    This waits for at most `patience_s` seconds. It stops waiting when a member answers that the
    member waits elsewhere, maybe for this node. Afterwards, the RxThread repeats the requests.
    """
    with group.call_lock:
        deadline = Deadline(group.runtime, patience_s)
        group.told()
        while group.is_evicted:
            group.check_open()
            group.ask_to_join(again=True)
            if deadline.expired():
                return False
            with group.lock:
                patience_s = min(ASK_EVERY_S, deadline.remaining_s())
                group.changed.wait_for(lambda: group.phase is not Phase.ASKING, patience_s)
            if group.phase is Phase.REFUSED:
                return False
        return True
