"""Run logs as nodes write them, made up: of any length, and ended in any way."""

import json
import math
import time

from dpwa.observe.figures import NAMES
from dpwa.observe.run_log import RUN_LOG_VERSION

BEGAN = 1_790_000_000.0  # seconds since the epoch


def write_log(folder, name, **told):
    """Write the log of one process of a node, and return its path; see `lines_of_log`."""
    folder.mkdir(parents=True, exist_ok=True)
    began = told.get("began", BEGAN)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(began))
    file_name = told.pop("file_name", name)
    path = folder / f"{file_name}-{stamp}-{told.get('pid', 100)}.jsonl"
    lines = lines_of_log(name, **told)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def lines_of_log(
    name,
    *,
    seconds=20,
    speed=5.0,
    began=BEGAN,
    pid=100,
    ends=True,
    events=(),
    peers=None,
    version=RUN_LOG_VERSION,
    run="",
    cluster="",
    **figures,
):
    """Yield the lines of a log: a sample a second, `figures` in all of them.

    `events` are (seconds since `began`, kind, about); `peers`: how often it has merged whom.
    """
    yield {"type": "start", "run_log": version, "time": began, "name": name, "host": "one",
           "pid": pid, "algorithm": "gossip", "topology": "ring",
           "group": None, "run": run, "cluster": cluster}  # fmt: skip
    for second in range(1, seconds + 1):
        yield {"type": "sample", "time": began + second, **_sample(second, speed), **figures}
    for after, kind, about in events:
        yield {"type": "event", "time": began + after, "kind": kind, "about": about, "text": ""}
    yield peers_line(began + seconds, peers or {})
    if ends:
        yield {"type": "end", "time": began + seconds}


def peers_line(at, merges):
    peers = {
        name: {"merges": count, "merged_bytes": 10 * count, "bytes_received": 4 * count,
               "bytes_sent": count, "health": "alive"}
        for name, count in merges.items()
    }  # fmt: skip
    counts = {"bounds": [0.0, 1.0, 2.0], "counts": [3, 2, 1, 0], "sum": 4.0}
    return {"type": "peers", "time": at, "waits": counts, "staleness": counts, "peers": peers}


def _sample(second, speed):
    steps = int(speed * second)
    counters = {
        "steps": steps,
        "merges": steps,
        "train_s": 0.7 * second,
        "publish_s": 0.1 * second,
        "wait_s": 0.15 * second,
        "merge_s": 0.05 * second,
        "sent_bytes": 1000 * steps,
        "received_bytes": 900 * steps,
        "merged_bytes": 1500 * steps,
        "mapped_bytes": 600 * steps,
        "staleness_sum": 1.0 * steps,
    }
    gauges = {"loss": 2 * math.exp(-steps / 60) + 0.1, "consensus_distance": 1 / (1 + second)}
    gauges |= {"rounds": None, "in_sync": None}  # of `together`
    return {**dict.fromkeys(NAMES, 0), "clock": steps, "version": steps, **counters, **gauges}
