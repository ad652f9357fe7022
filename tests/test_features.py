"""A part is added by its package and one line in `dpwa.features`; nothing else names it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.nodes import config_of
from support.times import PROCESS_HANGS_AFTER_S

PACKAGE = Path(__file__).parent.parent / "dpwa"
LINE = (
    '    Feature("echo", made_by="dpwa.echo.part:Echoes", messages="dpwa.echo.messages",'
    ' types="ask_echo echo", section="echo", commands="dpwa.echo.command:echo"),\n'
)
FILES = {
    "__init__": "",
    "messages": """
from typing import Literal
from dpwa.wire.fields import BaseMessage, Name

class AskEcho(BaseMessage):
    type: Literal["ask_echo"] = "ask_echo"
    text: Name

class Echo(BaseMessage):
    type: Literal["echo"] = "echo"
    text: Name
""",
    "part": """
from dpwa.echo.messages import AskEcho, Echo
from dpwa.lifecycle import Closeable
from dpwa.node.serving.service import Listener, Service

class Echoes(Closeable, Service):
    handles = (AskEcho,)

    def __init__(self, node):
        self.answered = 0
        node.attach(self, Listener())
        node.describe("echo", self.report)

    def handle(self, sender, message, reply):
        self.answered += 1
        reply(Echo(request=message.request, text=message.text))

    def report(self):
        return {"answered": self.answered}

    def close(self):
        print("closed", flush=True)
""",
    "command": """
from support.strangers import question
from dpwa.echo.messages import AskEcho

def echo(endpoint: str):
    print(question(endpoint, AskEcho(request=1, text="hello"), None).text, flush=True)
""",
}
PROGRAM = """
import json, subprocess, sys
from dpwa import DpwaConnection
from dpwa.node.report import read_report

with DpwaConnection("w1", json.loads(sys.argv[1])) as connection:
    print("dpwa.echo.messages" in sys.modules, "echo" in connection.node.report(), flush=True)
    command = [sys.executable, "-m", "dpwa", "echo", connection.node.endpoint]
    subprocess.run(command, check=True)
    told = connection.node.report()
    print(told["echo"], read_report(told).sections["echo"], flush=True)
"""


@pytest.fixture
def extended(tmp_path):
    """A folder with dpwa and a package of a new part, of which one line of dpwa tells."""
    package = tmp_path / "dpwa"
    (package / "echo").mkdir(parents=True)
    for name, text in FILES.items():
        (package / "echo" / f"{name}.py").write_text(text)
    for each in PACKAGE.iterdir():
        if each.name not in ("__pycache__", "features.py"):
            (package / each.name).symlink_to(each)
    table = (PACKAGE / "features.py").read_text()
    begin = "FEATURES = (\n"
    assert table.count(begin) == 1
    (package / "features.py").write_text(table.replace(begin, begin + LINE))
    return tmp_path


def test_a_part_that_is_added_by_one_line_works_in_a_node(extended):
    path = os.pathsep.join([str(extended), str(PACKAGE.parent / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(config_of(1))],
        env={**os.environ, "PYTHONPATH": path},
        cwd=extended,
        check=True,
        capture_output=True,
        text=True,
        timeout=PROCESS_HANGS_AFTER_S,
    )
    told = "{'answered': 1}"
    assert done.stdout.splitlines() == ["False False", "hello", f"{told} {told}", "closed"]
