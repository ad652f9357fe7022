"""How a node gets into a group: together with others that begin, or again after it was left behind.

Each function waits on the thread of its caller.
"""

from __future__ import annotations

from dpwa.clock import Deadline
from dpwa.collectives.group import Group, Phase
from dpwa.collectives.pulling import LOOK_EVERY_S
from dpwa.errors import LeftBehindError, PeerLost

ASK_EVERY_S = 0.2
MEET_S = 5.0  # a node that begins alone waits so long for others, because joining takes seconds


def begin_together(group: Group, timeout_s: float) -> None:
    """Before the first collective, begin with other nodes that begin, if they arrive in time."""
    deadline = Deadline(group.runtime, min(MEET_S, timeout_s / 2))
    while group.may_meet() and not deadline.expired():
        group.check_open()
        with group.lock:
            group.changed.wait(LOOK_EVERY_S)
    group.meet()


def get_in(group: Group, timeout_s: float) -> None:
    """Take part again, if this node was left behind, without calling a collective.

    Raises PeerLost if there is no other node (this one continues alone), LeftBehindError if the
    others do not admit it.
    """
    with group.call_lock:
        group.told()
        wait_to_get_in(group, Deadline(group.runtime, timeout_s), timeout_s)


def wait_to_get_in(group: Group, deadline: Deadline, timeout_s: float) -> None:
    """Ask to be admitted until a node does so. Continue alone if there is none."""
    own = group.own.name
    while group.is_evicted:
        group.check_open()
        reached = group.ask_to_join()
        group.start_anew()
        with group.lock:
            patience_s = min(ASK_EVERY_S, deadline.remaining_s())
            group.changed.wait_for(lambda: not group.is_evicted, patience_s)
        if group.is_evicted and deadline.expired():
            if not group.is_answered:
                group.start_alone()
                raise PeerLost(
                    group.others, "no other node answers, so this node continues alone [DPWA-E146]"
                )
            bound = f"within {timeout_s:g} s"
            if reached:
                asked = ", ".join(reached)
                raise LeftBehindError(
                    (own,), f"no collective of {asked} admitted {own} {bound} [DPWA-E147]"
                )
            raise LeftBehindError(
                (own,),
                f"{own} was not admitted again {bound}, and no other node can be reached now"
                " [DPWA-E167]",
            )


def ask_in(group: Group, patience_s: float) -> bool:
    """Ask to be admitted, if this node was left behind. Return whether it is a member.

    This waits for `patience_s` at most, and no longer once a member says that it waits elsewhere,
    maybe for this node. Afterwards the RxThread continues to ask.
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
