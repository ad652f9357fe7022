"""Simulates whole nodes in virtual time, each as a `DpwaConnection` like in real programs.

One thread runs all nodes as greenlets, one at a time. The network between them is virtual. The same
seed gives the same run, to the byte.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from dpwa.config import Config
from dpwa.connection import DpwaConnection
from dpwa.errors import DpwaError
from dpwa.node.training_figures import Activity
from dpwa.runtime import Condition
from dpwa.sim.churn import NodeChange, NodeChangeKind
from dpwa.sim.conditions import Conditions
from dpwa.sim.nodes.runtime import VirtualRuntime
from dpwa.sim.nodes.tcp import Traffic, VirtualTcp
from dpwa.sim.nodes.training import ArrayTraining, Floats, ScaledSnapshots
from dpwa.sim.samples import Moment, NodeFigures, RunOutcome, RunRecorder, Watch, has_target
from dpwa.sim.scenario import RunSpec, node_name
from dpwa.sim.tasks import make_task
from dpwa.virtual_network import VirtualNetwork

NAME = "nodes"
LOOKS = 1000  # checks of a run whose length is roughly known
LOOK_EVERY_S = 0.1  # virtual seconds between checks, if the length is unknown
LOOKS_PER_ROUND = 4  # minimum, if there is a target


def _of_simulated_nodes(config: Config, seed: int, scale: float) -> Config:
    """Return a configuration without the settings that affect the real machine.

    `scale` is the number of bytes on the wire for which each byte of a snapshot stands.
    """
    limit = config.max_upload_mbps
    return config.model_copy(
        update={
            "seed": seed,
            "max_upload_mbps": None if limit is None else limit / scale,
            "transport": "tcp",
            "security": "none",
            "run_log": "",
            "state_dir": "",
            "checkpoint": config.checkpoint.model_copy(update={"dir": ""}),
            "metrics": config.metrics.model_copy(update={"port": None}),
        }
    )


class NodesRun:
    """One run of whole nodes."""

    def __init__(self, spec: RunSpec, watch: Watch) -> None:
        scenario = spec.scenario
        self.spec = spec
        self._conditions = Conditions(spec)
        self._task = make_task(spec)
        self.parameters: Floats = self._task.starts()  # of all nodes, shape (N, D)
        self._starts = self.parameters.copy()
        self._recorder = RunRecorder(spec, self._task, self.parameters, watch)
        self.network = VirtualNetwork(scenario.seed)
        links = ConditionLinks(self._conditions, random.Random(f"{scenario.seed}/links"))
        self._scaled = ScaledSnapshots.from_spec(spec, self._conditions, self._task.dimension)
        self.tcp = VirtualTcp(self.network, links, self._scaled.scale)
        self.nodes = [SimulatedNode(index) for index in range(scenario.nodes)]
        for node in spec.config.nodes:
            self.tcp.hosts[node.connect_endpoint] = node.name
        self._base = _of_simulated_nodes(spec.config, scenario.seed, self.tcp.scale)
        costs, megabytes = scenario.costs, self._scaled.real_bytes / 1e6
        self._round_s = costs.round_ms / 1000.0
        self._publish_s = costs.publish_ms_per_mb * megabytes / 1000.0
        self._merge_s = costs.merge_ms_per_mb * megabytes / 1000.0
        round_s = self._conditions.usual_step_s + self._conditions.own_work_s
        round_s += self._scaled.real_bytes / self._conditions.upload_bytes_per_s
        round_s += 2.0 * self._conditions.longest_latency_s
        rounds_s = (scenario.rounds or 0) * round_s
        # Check in each round, because the user may stop the run, or the run may reach its target.
        looks = LOOKS_PER_ROUND if has_target(scenario.target) else 1
        longest_s = round_s / looks or LOOK_EVERY_S
        self._look_every_s = min(longest_s, (scenario.seconds or rounds_s) / LOOKS or LOOK_EVERY_S)
        self._is_lockstep = scenario.schedule == "lockstep"
        self._pace = 0  # the round of the slowest node, in lockstep
        self.events: list[tuple[float, str]] = []
        self._changes: Iterator[NodeChange] = self._conditions.events()
        self._has_changes = True

    def simulate(self) -> RunOutcome:
        was_interrupted = False
        self.plan_events()
        try:
            with only_errors():
                self.network.run_until(self.spec.scenario.seconds or math.inf)
        except KeyboardInterrupt:
            was_interrupted = True
        except BaseException:
            self._end_all()
            raise
        return self.end_run(was_interrupted=was_interrupted)

    def plan_events(self) -> None:
        """Schedule the partitions, the node changes and the progress checks of the run."""
        for time_s, nodes in self._conditions.partition_changes():
            told = "a partition ends" if nodes is None else f"{len(nodes)} nodes are cut off"
            self.network.call_later(time_s, partial(self._partition, told))
        self._plan_next_change()
        self.network.call_later(0.0, self._look)

    def end_run(self, *, was_interrupted: bool = False) -> RunOutcome:
        moment = self._moment()
        figures = tuple(self._figures(node) for node in self.nodes if node.lives)
        self._end_all()
        samples = self._recorder.take_last_sample(moment)
        was_stopped = self._recorder.was_stopped or was_interrupted
        return RunOutcome(samples, figures, tuple(self.events), NAME, was_stopped)

    def _end_all(self) -> None:
        with only_errors():
            for node in self.nodes:
                node.end_process()

    def config_of(self, node: SimulatedNode) -> Config:
        if self.spec.scenario.membership == "listed":
            return self._base
        own = self._base.node(node.name)
        return self._base.model_copy(update={"nodes": (own,)})

    # Planned events

    def _partition(self, told: str) -> None:
        """Apply the network partition of the current moment: cut and restore links."""
        now, parts = self.network.clock.now(), list[list[int]]()
        for node in range(self._conditions.nodes):
            found = (p for p in parts if not self._conditions.is_cut(p[0], node, now))
            part = next(found, None)
            if part is None:
                parts.append([node])
            else:
                part.append(node)
        self.network.partition(*([node_name(index) for index in part] for part in parts))
        self._note(told)

    def _plan_next_change(self) -> None:
        """Apply all due node changes, such as kills, and schedule the next change."""
        now = self.network.clock.now()
        for change in self._changes:
            if change.time_s > now:
                self.network.call_later(change.time_s - now, partial(self._go_on_with, change))
                return
            self._change(change)
        self._has_changes = False

    def _go_on_with(self, change: NodeChange) -> None:
        self._change(change)
        self._plan_next_change()

    def _change(self, change: NodeChange) -> None:
        node = self.nodes[change.node]
        match change.kind:
            case NodeChangeKind.START | NodeChangeKind.RETURN:
                self.start(node)
            case NodeChangeKind.KILL:
                self.kill(node)
            case NodeChangeKind.LEAVE:
                self.close_node(node)

    def _look(self) -> None:
        """Check the progress of the run, and end it if it is over."""
        goes_on = self._recorder.observe(self._moment())
        if not goes_on or self._is_over():
            self.network.stop()
            return
        self.network.call_later(self._look_every_s, self._look)

    def _is_over(self) -> bool:
        """Return whether all living nodes have done their updates, and no other node will start."""
        living = [node for node in self.nodes if node.lives_now]
        have_come = all(node.lives for node in self.nodes)
        return all(node.is_done for node in living) and (
            not self._has_changes or (have_come and bool(living))
        )

    # Nodes

    def start(self, node: SimulatedNode) -> None:
        kind = NodeChangeKind.RETURN if node.lives else NodeChangeKind.START
        if self.network.clock.now() > 0.0:
            self._note(kind.told_of(node.name))
        if node.lives_now:  # the node is still closing
            self._end(node)
        chance = random.Random(f"{self.spec.scenario.seed}/{node.name}/{node.lives}")
        runtime = VirtualRuntime(self.tcp, node.name, chance)
        node.lives += 1
        node.runtime = runtime
        self.parameters[node.index] = self._starts[node.index]
        thread = runtime.thread(lambda: self._live(node, runtime), f"trainer-{node.name}")
        thread.start()

    def _live(self, node: SimulatedNode, runtime: VirtualRuntime) -> None:
        try:
            connection = DpwaConnection(node.name, self.config_of(node), runtime=runtime)
        except DpwaError as error:
            self._note(f"{node.name} did not start: {error}")
            self.network.call_later(0.0, lambda: self._over(node, runtime))
            return
        node.connection = connection
        with np.errstate(over="ignore", invalid="ignore"):  # the figures show a run that diverges
            self.work(node, runtime, connection)
        node.is_done = True
        self._pass_turns()
        while True:
            runtime.sleep(1.0)  # the node still serves nodes that train

    def work(
        self, node: SimulatedNode, runtime: VirtualRuntime, connection: DpwaConnection
    ) -> None:
        """Run the training loop of one node, as a real training script would."""
        x = self.parameters[node.index : node.index + 1]
        training = ArrayTraining(connection, x[0], self._scaled)
        node.has_taken_over = training.take_over()
        node.advanced, node.pace, node.has_joined = runtime.condition(), self._slowest(), True
        rounds = self.spec.scenario.rounds or math.inf
        while node.updates < rounds:  # counts all processes of the node
            self.update(node, runtime, training, x)

    def update(
        self, node: SimulatedNode, runtime: VirtualRuntime, training: ArrayTraining, x: Floats
    ) -> None:
        """Simulate one update of a node, with its publish, training step, fetch and merge."""
        began, figures = runtime.now(), training.rounds.figures
        if self._publish_s:
            with figures.doing(Activity.PUBLISH):
                runtime.sleep(self._publish_s)
        training.update_send(node.loss)
        step_s = self._conditions.step_s(node.index, node.updates, runtime.now())
        runtime.sleep(self._round_s + step_s)
        before = x[0].copy()
        node.loss = self.take_step(node, x)
        node.updates += 1
        trained = runtime.now()
        node.trained_s += trained - began
        training.average(before)
        merges = training.rounds.merges
        training.update_wait(node.loss)
        node.pace += 1
        self._keep_pace(node)
        node.waited_s += runtime.now() - trained
        if training.rounds.merges > merges and self._merge_s:
            with figures.doing(Activity.MERGE):
                runtime.sleep(self._merge_s)
            node.trained_s += self._merge_s

    def take_step(self, node: SimulatedNode, x: Floats) -> float | None:
        """Take a training step, in place. Return its loss, or `None` if the task has none."""
        losses = self._task.step(x, np.array([node.index]))
        return None if losses is None else float(losses[0])

    def _keep_pace(self, node: SimulatedNode) -> None:
        """In lockstep mode, wait until all training nodes have finished this node's round."""
        if self._is_lockstep:
            self._pass_turns()
            while node.advanced is not None and node.pace > self._pace:
                node.advanced.wait()

    def _slowest(self) -> int:
        """Return the round number of the slowest training node."""
        return min((n.pace for n in self.nodes if n.has_joined and not n.is_done), default=0)

    def _pass_turns(self) -> None:
        """In lockstep mode, wake waiting nodes if the slowest node has reached a new round."""
        before, self._pace = self._pace, self._slowest() if self._is_lockstep else 0
        for node in self.nodes if self._pace != before else ():
            if node.advanced is not None:
                node.advanced.notify_all()

    def kill(self, node: SimulatedNode) -> None:
        """Kill a node without a goodbye message to peers."""
        self._note(NodeChangeKind.KILL.told_of(node.name))
        self._end(node)

    def close_node(self, node: SimulatedNode) -> None:
        """Close a node, which says goodbye to the others."""
        self._note(NodeChangeKind.LEAVE.told_of(node.name))
        runtime, connection = node.runtime, node.connection
        if runtime is None or connection is None:  # the node is still starting
            self._end(node)
            return

        def close_connection() -> None:
            connection.close()
            self.network.call_later(0.0, lambda: self._over(node, runtime))

        runtime.thread(close_connection, f"leave-{node.name}").start()

    def _over(self, node: SimulatedNode, runtime: VirtualRuntime) -> None:
        if node.runtime is runtime:
            self._end(node)

    def _end(self, node: SimulatedNode) -> None:
        node.end_process()
        self._pass_turns()

    # Results

    def _note(self, text: str) -> None:
        self.events.append((self.network.clock.now(), text))

    def _moment(self) -> Moment:
        living = [node for node in self.nodes if node.trains]
        losses = [node.loss for node in living if node.loss is not None]
        have_lived = sum(node.lives > 0 for node in self.nodes)
        sent = sum(traffic.sent for traffic in self.tcp.traffic.values())
        return Moment(
            time_s=self.network.clock.now(),
            round=sum(node.updates for node in living) / max(1, len(living)),
            x=self.parameters[[node.index for node in living]],
            loss=sum(losses) / len(losses) if losses else None,
            bytes_per_node=sent / max(1, have_lived),
        )

    def _figures(self, node: SimulatedNode) -> NodeFigures:
        merges, served = node.report()
        traffic = self.tcp.traffic.get(node.name, Traffic())
        return NodeFigures(
            name=node.name,
            updates=node.updates,
            merges=merges,
            bytes_sent=traffic.sent,
            bytes_received=traffic.received,
            trained_s=node.trained_s,
            waited_s=node.waited_s,
            served=served,
        )


class ConditionLinks:
    """Gives the latency and rates of links between named nodes. `rng` is for jitter and losses."""

    def __init__(self, conditions: Conditions, rng: random.Random) -> None:
        self._conditions = conditions
        self._rng = rng
        self._index = {node_name(index): index for index in range(conditions.nodes)}

    def delay_s(self, sender: str, to: str) -> float:
        if sender == to:
            return 0.0
        return self._conditions.delay_s(self._index[sender], self._index[to], self._rng)

    def may_connect(self, client: str, server: str) -> bool:
        return client == server or not self._conditions.is_behind_nat(self._index[server])

    def upload(self, node: str) -> float:  # noqa: ARG002
        """Return the upload rate in bytes per second. Nodes apply `max_upload_mbps` themselves."""
        return self._conditions.link_bytes_per_s

    def download(self, node: str) -> float:  # noqa: ARG002
        return self._conditions.download_bytes_per_s

    def shared_link(self, sender: str, to: str) -> tuple[str, float] | None:
        conditions = self._conditions
        site = conditions.site(self._index[sender])
        is_inside = site == conditions.site(self._index[to])
        if is_inside or math.isinf(conditions.between_sites_bytes_per_s):
            return None
        return conditions.sites[site], conditions.between_sites_bytes_per_s


@contextmanager
def only_errors() -> Iterator[None]:
    """Suppress all warnings of dpwa.

    This includes warnings of a real node in the same process, because loggers do not know the node
    of a message.
    """
    logger = logging.getLogger("dpwa")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class SimulatedNode:
    """A simulated node, with its current process and its figures over all its processes."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = node_name(index)
        self.lives = 0  # number of its processes so far
        self.updates = 0  # in all lives
        self.loss: float | None = None
        self.trained_s = self.waited_s = 0.0  # in all lives
        self.is_done = False  # the node has taken all its updates
        self.pace = 0  # its round, in lockstep
        # its process trains; has begun where its peers had come to
        self.has_joined = self.has_taken_over = False
        self.advanced: Condition | None = None  # notified when other nodes advance
        self.runtime: VirtualRuntime | None = None
        self.connection: DpwaConnection | None = None
        self._merges = self._served = 0

    @property
    def lives_now(self) -> bool:
        return self.runtime is not None

    @property
    def trains(self) -> bool:
        """Whether the node trains. A restarted process first adopts the state of its peers."""
        return self.lives_now and (self.has_joined or self.lives == 1)

    def report(self) -> tuple[int, int]:
        if self.connection is None:
            return self._merges, self._served
        node = self.connection.node
        return self._merges + node.rounds.merges, self._served + node.snapshots_served

    def end_process(self) -> None:
        """Release the resources of a process that has ended."""
        runtime, connection = self.runtime, self.connection
        self._merges, self._served = self.report()
        self.runtime = self.connection = self.advanced = None
        self.has_joined = self.has_taken_over = self.is_done = False
        if runtime is not None:
            runtime.kill()
        if connection is not None:
            connection.close()
