"""An answer with as much as there may be of everything still is a message that peers take."""

from dataclasses import replace

from support.nodes import config_of

from dpwa.config import load_config
from dpwa.node.node import Node
from dpwa.node.report import MemberReport, MembershipReport
from dpwa.observe.events import RunEvent
from dpwa.observe.recorder import NodeRecord
from dpwa.wire import limits
from dpwa.wire.watching import AskHistory

NAME = "n" * limits.MAX_NAME_CHARACTERS


def test_the_largest_answer_fits():
    with Node("w1", load_config(config_of(2))) as node:
        report = node.condition()
    (peer,) = report.peers
    names = [f"{NAME[:-4]}{number:04}" for number in range(600)]
    report = replace(
        report,
        peers=tuple(peer._replace(name=n, endpoint=f"tcp://{n}:65535") for n in names),
        membership=MembershipReport(
            tuple(MemberReport(name, f"tcp://{NAME}:65535", "suspect") for name in names)
        ),
    )
    now, answers = [1e9], []
    record = NodeRecord(lambda: report, wall=lambda: now[0])
    for _ in range(700):
        now[0] += 1.0
        record.sample()
    record._events.add_events(
        RunEvent(1e9, NAME, "unreachable", NAME, "x" * 200) for _ in range(600)
    )
    message = AskHistory(request=1, since=0.0, events_after=0, of="")
    record.handle(b"", message, lambda message, payload: answers.append(payload))
    assert len(answers[0]) <= limits.MAX_HISTORY_BYTES
