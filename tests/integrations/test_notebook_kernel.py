"""Gossip in a notebook: a real IPython kernel, whose cells are run again and interrupted."""

import os
import signal
import textwrap
import threading

import pytest
from support.nodes import config_of, eventually
from support.times import PROCESS_HANGS_AFTER_S
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel, jupyter_client")
pytest.importorskip("ipykernel", reason="needs ipykernel and jupyter_client")

ensure_event_loop = pytest.importorskip("jupyter_core.utils").ensure_event_loop

CONNECT = "gossip = dpwa.connect(net, config=config, name='w1')"


class Kernel:
    """A kernel, whose cells return what they print or raise."""

    def __init__(self, folder):
        self._manager, self._client = manager.start_new_kernel(
            startup_timeout=PROCESS_HANGS_AFTER_S, cwd=str(folder)
        )
        self._pid = self._manager.provisioner.pid

    def run(self, cell, is_interrupted_after_s=None):
        said, is_over = [], threading.Event()

        def press_stop():  # again and again, as a user does
            while not is_over.wait(is_interrupted_after_s):
                os.kill(self._pid, signal.SIGINT)

        presses = threading.Thread(target=press_stop)

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "execute_input" and is_interrupted_after_s is not None:
                presses.start()
            said.extend(content.get(key, "") for key in ("text", "ename", "evalue"))

        try:
            self._client.execute_interactive(
                textwrap.dedent(cell), timeout=PROCESS_HANGS_AFTER_S, output_hook=hear
            )
        finally:
            is_over.set()
            if presses.ident is not None:
                presses.join()
        return " ".join(filter(None, said))

    def threads(self):
        """Names of the threads of dpwa in the kernel."""
        return self.run("""
            import threading
            print([thread.name for thread in threading.enumerate() if "dpwa" in thread.name])
            """)

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.context.destroy(linger=0)
        ensure_event_loop().close()  # it stays in this thread, for calls that wait


@pytest.fixture
def kernel(tmp_path):
    made = Kernel(tmp_path)
    yield made
    made.close()


def merges(kernel, other):
    """Have the node of the kernel merge another one's parameters."""

    def attempt():
        other.step(0.5)
        return "Merge(peer='w2'" in kernel.run("print(gossip.step(0.5))")

    return eventually(attempt, timeout_s=30)


@pytest.mark.filterwarnings("ignore")  # of the client's own event loop
def test_cells_are_run_again_and_interrupted(kernel):
    config = config_of(2, initial_state="own")
    with DpwaPyTorchAdapter(nn.Linear(2, 2), "w2", config) as other:
        assert kernel.run(f"import dpwa, torch; config = {config!r}") == ""
        assert kernel.run("net = torch.nn.Linear(2, 2)") == ""
        assert kernel.run(CONNECT) == ""
        merges(kernel, other)
        assert "w1: dpwa closed the earlier connection of this node" in kernel.run(CONNECT)
        merges(kernel, other)
        assert "ZeroDivisionError" in kernel.run(CONNECT + "\n1 / 0")
        merges(kernel, other)
        endless = "while True: gossip.step(0.5)"
        assert "KeyboardInterrupt" in kernel.run(endless, is_interrupted_after_s=1.0)
        merges(kernel, other)
        finish = "gossip.finish(timeout_s=100)"  # the other one still trains
        assert "KeyboardInterrupt" in kernel.run(finish, is_interrupted_after_s=1.0)
        merges(kernel, other)
        again = f"while True: {CONNECT[:-1]}, log_level='error')"  # else it floods the client
        assert "KeyboardInterrupt" in kernel.run(again, is_interrupted_after_s=1.0)
        assert "Error" not in kernel.run(CONNECT)
        merges(kernel, other)
        assert kernel.run("gossip.close()") == ""
        assert "[]" in kernel.threads()
