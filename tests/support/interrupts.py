"""Ctrl-C at a moment of one's choice."""

import signal
import threading

import pytest


def interrupted(work, seconds):
    """Do work, and interrupt the main thread so many seconds from now: it must go on till then."""
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))

    def begin():
        timer.start()
        work()

    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
    finally:
        timer.cancel()
        timer.join()
