"""For every test: nothing may be left behind, and a failing example can be replayed."""

import gc
import logging
import os
import signal
import stat
import threading
import time
from contextlib import suppress

import hypothesis
import pytest
import zmq
from support import processes, times
from support.examples import THOROUGH

from dpwa.launch import ports

# Who starts the tests in the background of a script ignores Ctrl-C and Ctrl-\, who starts them
# with nohup the end of the terminal; their children would do so, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Python's garbage collector would look through all that pytest and torch have imported every few
# milliseconds, which takes an eighth of the whole time. Leaks are found all the same, see below.
gc.set_threshold(50_000, 20, 100)

# Several tests run at a time, and their work is tiny: threads that wait for each other cost more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile(
    "thorough", deadline=None, print_blob=True, max_examples=THOROUGH
)
hypothesis.settings.register_profile(
    "dpwa", hypothesis.settings.get_profile("thorough"), max_examples=THOROUGH // 3
)
hypothesis.settings.load_profile("dpwa")


def pytest_addoption(parser):
    parser.addoption(
        "--quiet-machine",
        action="store_true",
        help="nothing else runs here: check the bounds of seconds, in all tests that have some",
    )


def pytest_configure(config):
    if config.getoption("--quiet-machine"):
        times.expect_a_quiet_machine()
        if config.option.markexpr == "not slow":
            config.option.markexpr = "timed and not slow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of all files that bound seconds."""
    for item in items:
        if getattr(item.module, "at_most", None) is times.at_most:
            item.add_marker(pytest.mark.timed)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config, specs):
    """Have one process of each kind fork the programs of all test processes, and these as well."""
    servers = processes.shared_fork_servers()
    servers.__enter__()
    config.add_cleanup(lambda: servers.__exit__(None, None, None))
    for spec in specs:
        spec.python = processes.FORKED_PYTHON


def pytest_collection_finish():
    """Take what is imported by now for eternal: it takes long to look through, again and again."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True  # else pytest adds its handlers to each, six times a test
    gc.freeze()


def _open_sockets():
    """Sockets of this process, by inode."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  (for every test)
        with suppress(OSError):  # the one of the listing itself
            status = os.fstat(int(descriptor))
            if stat.S_ISSOCK(status.st_mode):
                found.add(f"socket {status.st_ino}")
    return found


@pytest.fixture(autouse=True, scope="session")
def _ports_of_its_own():
    """Keep test processes that run side by side from choosing the same free port."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        yield
        return
    count, index = int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), int(worker.removeprefix("gw"))
    index %= count  # a test process that replaces one that crashed has a higher number
    candidates = ports._candidates
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "_candidates", lambda: (p for p in candidates() if p % count == index))
        yield


@pytest.fixture(autouse=True, scope="session")
def _lag():
    """Have measured how long the machine keeps the tests waiting."""
    with times.watched():
        yield


@pytest.fixture(autouse=True, scope="session")
def _fork_servers():
    """Have what forks the programs of tests."""
    with processes.fork_servers_running():
        yield


@pytest.fixture(autouse=True, scope="session")
def _zeromq_collector():
    """Start pyzmq's thread for messages sent without a copy; a process has one, for good."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://start")
        two.connect("inproc://start")
        two.send(bytes(zmq.COPY_THRESHOLD), copy=False)
        one.recv()


@pytest.fixture(autouse=True)
def _level_of_its_own():
    """Take back the level that a node of the test before has given the process's logger."""
    logging.getLogger("dpwa").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    """Fail a test that leaks a thread or a socket."""
    if request.node.get_closest_marker("timed"):
        times.begin_a_test()
    threads, sockets = set(threading.enumerate()), _open_sockets()
    yield
    bound = None
    while True:
        left = [t.name for t in threading.enumerate() if t not in threads]
        left = [name for name in left if name != "tqdm_monitor"]  # which torch.compile may start
        left += sorted(_open_sockets() - sockets)
        if not left:
            return
        bound = bound or times.Bound(2.0)
        if bound.is_over:
            pytest.fail(f"left behind: {left}")
        gc.collect()
        time.sleep(0.02)
