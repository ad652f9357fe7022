"""What dpwa shows ends with a code that docs/troubleshooting.md has."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dpwa import load_config
from dpwa.errors import ConfigError, JoinTimeoutError, PeerLost, ProtocolError, UserError
from dpwa.message_codes import get_log

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
CLOSED = "node w1 is closed"


def code_at_end(text: str) -> str:
    """Return the code that a text ends with, which the page has an anchor for."""
    code = text.rstrip().rpartition(" [")[2].removesuffix("]")
    assert f'<a id="{code.lower()}"></a>{code} |' in PAGE.read_text("utf-8"), text
    return code


def raised_in(module: str, error: Exception) -> Exception:
    """Return the error once it was raised by code of that module."""
    space = types.ModuleType(module).__dict__ | {"error": error}
    with pytest.raises(type(error)) as caught:
        exec("raise error", space)
    return caught.value


def test_each_line_about_a_broken_configuration_ends_with_its_code(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("nodes: [{name: w1, port: 99999}]\nseeed: 3\n")
    command = [sys.executable, "-m", "dpwa", "config", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    codes = [code_at_end(line) for line in done.stderr.splitlines()]
    assert len(set(codes)) == 2


def test_an_error_ends_with_its_code_and_quotes_without(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "missing.yaml")
    error = caught.value
    assert str(error).endswith(f" [{error.message_code}]")
    assert code_at_end(str(error)) == error.message_code
    assert error.text == error.args[0] == error.problems[0]
    assert "DPWA" not in repr(error)


def test_a_copied_error_keeps_its_code():
    error = raised_in("dpwa.node.node", PeerLost(("w2",), "lost w2 in a collective"))
    assert code_at_end(str(error)) == error.message_code
    for other in (copy.copy(UserError(CLOSED)), pickle.loads(pickle.dumps(UserError(CLOSED)))):
        assert code_at_end(str(other)) == other.message_code


def test_what_quotes_a_message_with_its_code_at_the_end_has_that_code():
    error = UserError(f"rank 1 of the model's process group: {UserError(CLOSED)}")
    assert str(error) == error.text
    assert error.message_code == UserError(CLOSED).message_code


def test_the_exit_code_of_an_error_stays():
    error = JoinTimeoutError("w1: gives up, nobody has let it in within 3 s: ...")
    assert error.code == 3
    assert code_at_end(str(error)) == error.message_code


@pytest.mark.parametrize(
    "error",
    [
        raised_in("my_plugin", UserError(CLOSED)),
        UserError("quite another message"),
        UserError(),
        ProtocolError(CLOSED),
    ],
    ids=["raised by a plugin", "unknown", "empty", "of a peer"],
)
def test_other_messages_have_no_code(error):
    assert str(error) == error.text
    assert error.message_code is None


def test_a_logged_warning_ends_with_its_code(caplog):
    with caplog.at_level(logging.INFO, "dpwa.node"):
        get_log("dpwa.node").warning("%s: peer %s %s%s", "w1", "w2", "is slow", "")
        get_log("dpwa.node").info("%s: peer %s %s%s", "w1", "w2", "is back", "")
        get_log("dpwa.node").error("%s", "w1: gives up, nobody has let it in within 3 s")
        get_log("dpwa.node").error("%s", UserError(CLOSED))
        get_log("dpwa.node").warning("of %d words", 3)
        get_log("dpwa.node").warning(ValueError("no text"))
    peer, *others = (record.getMessage() for record in caplog.records)
    assert peer.startswith("w1: peer w2 is slow [DPWA-W")
    code_at_end(peer)
    assert others[0] == "w1: peer w2 is back"
    code_at_end(others[1])
    assert others[2:] == [str(UserError(CLOSED)), "of 3 words", "no text"]
    assert caplog.records[0].filename == Path(__file__).name  # where it was logged


def test_a_message_is_shown_where_no_file_can_be_opened():
    code = (
        "import os, resource, dpwa.errors\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        f"print(str(dpwa.errors.UserError({CLOSED!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(CLOSED)


def test_no_code_is_looked_up_before_a_message_is_shown():
    code = (
        "import sys, dpwa, dpwa.errors\n"
        "error = dpwa.errors.UserError('node w1 is closed')\n"
        "assert 'dpwa.message_codes' not in sys.modules\n"
        "from dpwa import message_codes\n"
        "log = message_codes.get_log('dpwa.node')\n"
        "log.info('nothing'), log.debug('nothing')\n"
        "assert message_codes._catalogue.cache_info().currsize == 0\n"
        "log.warning('node w1 is closed')\n"
        "assert message_codes._catalogue.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
