"""The dashboard as a process: what it serves, to whom, and how it ends."""

import json
import re
import signal
import socket
import subprocess
import sys

import httpx
from support.nodes import config_of

from dpwa import DpwaConnection


class Dashboard:
    """`dpwa dashboard`, running."""

    def __init__(self, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dpwa", "dashboard", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", self.line)[0] if "http" in self.line else ""

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        output = self.process.communicate(timeout=20)
        return self.process.returncode, *output


def first_event(url, **options):
    with httpx.stream("GET", url, timeout=20, **options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                return json.loads(line[6:])
    return None


def test_it_serves_a_run_to_this_machine_and_ends_with_ctrl_c():
    with DpwaConnection("w1", config_of(1)) as connection:
        place = connection.node.endpoint.removeprefix("tcp://")
        dashboard = Dashboard("--at", place, "--port", "0")
        try:
            told = first_event(f"{dashboard.url}api/stream")
            assert [node["endpoint"] for node in told["nodes"]] == [f"tcp://{place}"]
            page = httpx.get(dashboard.url)
            assert page.status_code == 200
            assert "default-src 'self'" in page.headers["content-security-policy"]
            assert httpx.get(f"{dashboard.url}api/node/<b>").status_code == 404
            assert httpx.get(dashboard.url, headers={"Host": "evil.example"}).status_code == 400
            assert httpx.post(dashboard.url).status_code == 405
        finally:
            code, _, errors = dashboard.end()
        assert (code, errors) == (0, "")


def test_beyond_this_machine_it_asks_for_its_token():
    dashboard = Dashboard("--at", "127.0.0.1:1", "--host", "0.0.0.0", "--port", "0")
    try:
        url, token = dashboard.url.replace("0.0.0.0", "127.0.0.1").split("?token=")
        for path in ("", "api/stream", "api/node/w1", "static/index.html"):
            assert httpx.get(url + path).status_code == 401
            assert httpx.get(f"{url}{path}?token={token}x").status_code == 401
        with httpx.Client() as browser:
            assert browser.get(f"{url}?token={token}").status_code == 200
            assert browser.get(url).status_code == 200  # by its cookie
    finally:
        dashboard.end()


def test_a_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "dpwa", "dashboard", "--at", "127.0.0.1:1", "--port", port],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 2
    assert f"--port: expected a free port of this machine (got 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
