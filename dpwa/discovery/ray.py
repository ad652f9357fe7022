"""Ray: actors and tasks of one driver find each other through the store of its cluster, once.

Each writes down its address, and asks those who have done so to be let in. So actors may come, die
and come back, elsewhere too; Ray is needed only when one starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from dpwa.config.endpoints import is_label, tcp_endpoint
from dpwa.discovery.interfaces import OwnHost, named_host
from dpwa.discovery.launcher import Environ, OpenCluster
from dpwa.launch.ports import held_ports
from dpwa.message_codes import get_log

log = get_log("dpwa.discovery")

NAMESPACE = "dpwa"  # of the store; what is in it lives as long as the cluster


class Ray:
    """The actors and tasks of one driver; those in a placement group are a cluster of their own."""

    name = "Ray"
    variables: tuple[str, ...] = ()

    def told(self, environ: Environ) -> str:  # noqa: ARG002
        """Say in which actor or task this is; it is the process that tells, not the environment."""
        ray: Any = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return ""
        context = ray.get_runtime_context()
        if context.worker.mode != ray.WORKER_MODE:
            return ""
        what = "actor" if context.get_actor_id() else "task"
        return f"{what} {_own_name(context)} of job {context.get_job_id()}"

    def cluster(self, environ: Environ, name: str | None) -> OpenCluster:
        """Write down where this node is, and find out where others are."""
        import ray

        context = ray.get_runtime_context()
        own = named_host(environ) or OwnHost(ray.util.get_node_ip_address(), "as Ray has it")
        with held_ports(1, own.host) as ports:
            listen = tcp_endpoint(own.host, ports[0])
        name = name or _own_name(context)
        log.info("%s is at %s, %s", name, own.host, own.reason)
        others = _exchanged(context, name, listen)
        return OpenCluster(name, listen, tuple(f"{who}@{where}" for who, where in others))


def _own_name(context: Any) -> str:
    """Return the name of the actor, if a node may have it, or a part of its number.

    An actor that Ray restarts, and a task that it tries again, keep it.
    """
    actor = context.get_actor_id()
    given = context.get_actor_name() if actor else ""
    if given and is_label(given):
        return str(given)
    return f"actor-{actor[:12]}" if actor else f"task-{context.get_task_id()[:12]}"


def _exchanged(context: Any, name: str, listen: str) -> Iterator[tuple[str, str]]:
    """Say where this node is; yield names and addresses of others, who may have gone."""
    from ray.experimental import internal_kv as store  # the one that Ray's own libraries use

    run = context.get_placement_group_id() or context.get_job_id()
    store._internal_kv_put(f"{run}/{name}", listen, overwrite=True, namespace=NAMESPACE)
    for key in sorted(store._internal_kv_list(f"{run}/", namespace=NAMESPACE)):
        who = key.decode().rpartition("/")[2]
        where = store._internal_kv_get(key, namespace=NAMESPACE)
        if who != name and where:
            yield who, where.decode()
