"""The table of the features (parts) of dpwa, with the objects, messages and commands of each.

The table contains only names, so that a process can read the table without importing the parts.
docs/architecture.md describes how to add a part.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """A feature (part) of dpwa: its modules, and the names by which other modules find it.

    Attributes:
        name: the name of the part.
        made_by: `module:Class` of the object that `DpwaConnection` creates, and closes before its
            node.
        setting: the setting that switches the part on, if the setting is not null, such as
            `metrics.port`. Without a setting, the part's first call or message creates the part.
        messages: the module of its messages.
        types: the types of these messages.
        section: its section of the node's report, in plain data. See `Node.describe`.
        algorithm: the module of the algorithm with the name of the part.
        commands: `module:name` of the command with the name of the part, or of a `typer.Typer`.
    """

    name: str
    made_by: str = ""
    setting: str = ""
    messages: str = ""
    types: str = ""
    section: str = ""
    algorithm: str = ""
    commands: str = ""


FEATURES = (
    Feature(  # created first, because its port may be in use
        "metrics", "dpwa.observe.prometheus:MetricsServer", "metrics.port", section="metrics"
    ),
    Feature(
        "membership",
        "dpwa.membership.members:Members",
        "join",
        messages="dpwa.wire.members",
        types="roster join_request welcome turned_away who_is here probe_request probe_answer",
    ),
    Feature(
        "collectives",
        "dpwa.collectives.collectives:Collectives",
        messages="dpwa.wire.collecting",
        types="hello post vote outcome evicted ask_to_join_view pull pulled_piece",
    ),
    Feature(
        "transactions",
        "dpwa.node.transactions.service:NoTransactions",
        messages="dpwa.wire.transaction_messages",
        types="propose prepared decision agreed busy decision_ack",
    ),
    Feature(
        "state",
        messages="dpwa.wire.state",
        types="ask_state state_standing state_busy other_state state_offer ask_piece state_piece"
        " state_gone state_done",
    ),
    Feature(
        "tables",
        messages="dpwa.wire.tables",
        types="table_seen table_elsewhere table_holdings table_made table_ready table_arrived"
        " table_addition table_added table_state table_state_taken table_get"
        " table_got table_refused",
    ),
    Feature(
        "recorder", messages="dpwa.wire.watching", types="ask_history history", section="run_log"
    ),
    Feature("adapter", section="training"),
    Feature("elastic", algorithm="dpwa.algorithms.elastic"),
    Feature("gossip", algorithm="dpwa.algorithms.gossip"),
    Feature("local", algorithm="dpwa.algorithms.outer"),
    Feature("lsgd", algorithm="dpwa.algorithms.lsgd"),
    Feature("noloco", algorithm="dpwa.algorithms.outer"),
    Feature("outer", algorithm="dpwa.algorithms.outer"),
    Feature("push_sum", algorithm="dpwa.algorithms.push_sum"),
    Feature("symmetric", algorithm="dpwa.algorithms.symmetric"),
    Feature("together", algorithm="dpwa.algorithms.together"),
    Feature("demo", commands="dpwa.cli.demo:demo"),
    Feature("launch", commands="dpwa.cli.launch:app"),
    Feature("status", commands="dpwa.cli.status:status"),
    Feature("top", commands="dpwa.cli.top:top"),
    Feature("dashboard", commands="dpwa.cli.dashboard:dashboard"),
    Feature("doctor", commands="dpwa.cli.doctor:doctor"),
    Feature("report", commands="dpwa.cli.report:report"),
    Feature("topology", commands="dpwa.cli.topology:topology"),
    Feature("plan", commands="dpwa.cli.plan:plan"),
    Feature("sim", commands="dpwa.cli.sim:app"),
    Feature("config", commands="dpwa.cli.config:app"),
    Feature("bench", commands="dpwa.cli.bench:app"),
    Feature("keys", commands="dpwa.cli.keys:app"),
    Feature("version", commands="dpwa.cli.version:version"),
)
