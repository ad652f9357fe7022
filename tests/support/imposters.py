"""Peers that do not behave: each speaks real ZeroMQ on a real port, from a thread of its own."""

import threading
from contextlib import contextmanager

import zmq


@contextmanager
def imposter(port, answer):
    """Listen on a port; send the frames of every item that `answer(frames)` yields."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(f"tcp://127.0.0.1:{port}")
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            if router.poll(20):
                identity, *frames = router.recv_multipart()
                for reply in answer(frames):
                    router.send_multipart([identity, *reply])

    thread = threading.Thread(target=serve, name="imposter")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        router.close()
        context.term()
