from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from dpwa.config import NodeConfig, load_config
from dpwa.errors import AddressError, UserError
from dpwa.launch import local_config, ports, require_free_addresses
from dpwa.launch.ports import free_ports
from dpwa.transport import addresses


def test_free_ports_are_distinct_and_can_be_listened_on() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_free_ports_avoid_those_of_outgoing_connections() -> None:
    low, high = ports._ephemeral_range()
    assert not [port for port in free_ports(20) if low <= port <= high]


def test_free_ports_are_found_where_outgoing_connections_may_use_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ephemeral = tmp_path / "ip_local_port_range"
    ephemeral.write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL_RANGE_FILE", ephemeral)
    assert len(set(free_ports(5))) == 5


def test_a_foreign_host_has_no_free_ports() -> None:
    with pytest.raises(UserError, match=r"2 free ports on 203\.0\.113\.7"):
        free_ports(2, "203.0.113.7")


def test_a_local_configuration_loads(tmp_path: Path) -> None:
    nodes = load_config(local_config(3, tmp_path)).nodes
    assert [node.name for node in nodes] == ["w1", "w2", "w3"]
    assert {node.host for node in nodes} == {"127.0.0.1"}
    assert len({node.port for node in nodes}) == 3
    require_free_addresses(nodes)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing.*No such file"):
        local_config(1, tmp_path / "missing")


def test_every_address_that_cannot_be_used_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("", 0)) as second:
        taken, everywhere = first.getsockname()[1], second.getsockname()[1]
        nodes = [
            NodeConfig(name="w1", host="127.0.0.1", port=taken),
            NodeConfig(name="w2", host="127.0.0.1", port=free_ports(1)[0]),
            NodeConfig(name="w3", host="example.org", bind="127.0.0.1", port=everywhere),
            NodeConfig(name="w4", host="203.0.113.7", port=45_000),
            NodeConfig(name="w5", host="no-such-host.invalid", port=45_000),
            NodeConfig(name="w6", host="a..b", port=45_000),
        ]
        with pytest.raises(AddressError) as caught:
            require_free_addresses(nodes)
    *lines, advice = caught.value.text.splitlines()
    who = f"the port is already in use by process {os.getpid()} ("
    assert [line.partition("(")[0] + "(" for line in lines[:2]] == [
        f"node w1 cannot listen on 127.0.0.1:{taken}: {who}",
        f"node w3 cannot listen on 127.0.0.1:{everywhere}: {who}",
    ]
    assert re.fullmatch(
        r"free ports are 2\d{4} to 2\d{4}\. `dpwa launch -n 6` finds free ports", advice
    )
    assert lines[2].startswith("node w4 cannot listen on 203.0.113.7:45000: this machine does")
    assert lines[3:] == [
        "node w5 cannot listen on no-such-host.invalid:45000: the host name is unknown",
        "node w6 cannot listen on a..b:45000: the host name is unknown",
    ]


def test_a_connection_that_has_the_port_of_a_node_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        host, port = client.getsockname()
        with pytest.raises(AddressError, match=f"by a connection of process {os.getpid()} "):
            require_free_addresses([NodeConfig(name="w1", host=host, port=port)])


def test_the_next_free_ports_are_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(p for p in free_ports(20) if p < 60_000)
    monkeypatch.setattr(addresses, "FIRST_PORT", first)
    with socket.create_server(("127.0.0.1", first + 1)):
        found = addresses.free_range("127.0.0.1", 3)
    begins, _, ends = found.partition(" to ")
    assert int(begins) >= first + 2
    assert int(ends) == int(begins) + 2


@pytest.mark.parametrize("bind", ["*", "0.0.0.0", "localhost", "::1"])
def test_usual_listen_addresses_are_accepted(bind: str) -> None:
    (port,) = free_ports(1)
    require_free_addresses([NodeConfig(name="w1", host="example.org", bind=bind, port=port)])


def test_a_port_is_free_as_soon_as_nobody_listens_any_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        nodes = [NodeConfig(name="w1", host="127.0.0.1", port=port)]
        with pytest.raises(AddressError, match="in use"):
            require_free_addresses(nodes)
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # closed first, so the port stays in TIME_WAIT
    with socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind(("127.0.0.1", port))  # for who does not ask for its reuse
    require_free_addresses(nodes)


def test_socket_files_are_checked_as_well(tmp_path: Path) -> None:
    free, taken = (
        NodeConfig(name=name, endpoint=f"ipc://{tmp_path}/{name}") for name in ("free", "taken")
    )
    require_free_addresses([free, taken])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "taken"))
        listener.listen()
        with pytest.raises(AddressError) as caught:
            require_free_addresses([free, taken])
    assert caught.value.text == (
        f"node taken cannot listen on {taken.endpoint}: another process listens there"
    )
