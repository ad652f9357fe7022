"""The dashboard as a process: what it serves, to whom, and how it ends."""

import json
import socket
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from http.cookiejar import CookieJar

from support.dashboards import TIMEOUT_S, ToldRun, dashboard, served
from support.launched import dpwa
from support.nodes import config_of, eventually

from dpwa import DpwaConnection
from dpwa.observe.dashboard.server import MAX_READERS, Feed, Streams


def get(url, opener=None, **headers):
    """Return the status, the headers and the text of an answer."""
    request = urllib.request.Request(url, headers=headers)
    ask = urllib.request.urlopen if opener is None else opener.open
    try:
        with ask(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def first_event(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = iter(answer.readline, b"")
        return json.loads(next(line for line in lines if line.startswith(b"data: "))[6:])


def test_it_serves_a_run_to_this_machine_and_ends_with_ctrl_c():
    with DpwaConnection("w1", config_of(1)) as connection:
        place = connection.node.endpoint.removeprefix("tcp://")
        with dashboard("--at", place) as (url, ended):
            told = first_event(f"{url}api/stream")
            assert [node["endpoint"] for node in told["nodes"]] == [f"tcp://{place}"]
            status, headers, _ = get(url)
            assert status == 200
            assert "default-src 'self'" in headers["content-security-policy"]
            assert get(f"{url}api/node/%3Cb%3E")[0] == 404
            assert get(url, Host="evil.example")[0] == 400
    assert ended == [0, ""]


def asked_for_the_stream(url):
    """A connection over which the stream is wanted, and not read yet."""
    host, port = url.removeprefix("http://").removesuffix("/").split(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.sendall(f"GET /api/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return connection


def has_ended(connection):
    connection.settimeout(0.01)
    try:
        while part := connection.recv(1 << 16):
            if part.endswith(b"0\r\n\r\n"):
                return True
    except TimeoutError:
        return False
    return True


def test_however_many_streams_there_are_the_next_one_is_told():
    with served(ToldRun(["w1"]).view) as url, ExitStack() as stack:
        greedy = [stack.enter_context(asked_for_the_stream(url)) for _ in range(64)]
        assert first_event(f"{url}api/stream")["nodes"]
        left = MAX_READERS - 1
        eventually(lambda: sum(map(has_ended, greedy)) >= len(greedy) - left)
        assert not all(map(has_ended, greedy))


def test_a_client_with_many_streams_loses_its_oldest_to_others():
    streams = Streams(Feed(ToldRun(["w1"]).view))
    for client in (*"a" * 16, *"b" * 12, *"cccc"):
        streams.open_stream(client)
    first = next(iter(streams._readers))
    for client in "dba":
        streams.open_stream(client)
    assert Counter(streams._readers.values()) == {"a": 14, "b": 13, "c": 4, "d": 1}
    assert first.get_nowait() is None
    for _ in range(5):
        streams.open_stream("a")
    assert len(streams._readers) == MAX_READERS


def test_beyond_this_machine_it_asks_for_its_token():
    with dashboard("--at", "127.0.0.1:1", "--host", "0.0.0.0") as (address, _):
        url, token = address.replace("0.0.0.0", "127.0.0.1").split("?token=")
        for path in ("", "api/stream", "api/node/w1", "static/index.html"):
            assert get(url + path)[0] == 401
            assert get(f"{url}{path}?token={token}x")[0] == 401
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert get(f"{url}?token={token}", browser)[0] == 200
        assert get(url, browser)[0] == 200  # by its cookie


def test_two_dashboards_of_one_machine_do_not_take_each_others_cookie():
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    run = ToldRun(["w1"])
    with served(run.view, "one") as one, served(run.view, "two") as two:
        for url, token in ((one, "one"), (two, "two")):
            assert get(f"{url}?token={token}", browser)[0] == 200
        assert [get(url, browser)[0] for url in (one, two)] == [200, 200]


def test_a_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = dpwa("dashboard", "--at", "127.0.0.1:1", "--port", port)
    assert done.returncode == 2
    assert f"--port: expected a free port of this machine (got 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
