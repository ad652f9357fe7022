"""What `dpwa bench plane` measures."""

from __future__ import annotations

from dpwa.bench.suite import LinkSettings, Ratio, Suite

LINKS = {
    "publish": LinkSettings("shm", fetch_probability=0.0),
    "publish_unguarded": LinkSettings("shm", guard="off", fetch_probability=0.0),
    "shm": LinkSettings("shm"),
    "tcp": LinkSettings("tcp"),
    "fp16": LinkSettings("tcp", codec="fp16"),
    "bf16": LinkSettings("tcp", codec="bf16"),
    "int8": LinkSettings("tcp", codec="int8"),
    "topk": LinkSettings("tcp", codec="topk"),
}
CODECS = ("fp16", "bf16", "int8", "topk")
RAW_TCP, BARE_ZEROMQ = "raw_tcp", "bare_zeromq"  # beside the links, what needs ports

# Of each measure its figures, and what each of them is.
MEASURES: dict[str, dict[str, str]] = {
    "copy": {"copy": "copy_ of the model"},
    "lerp": {"lerp": "lerp_ of the model"},
    "copy_together": {"copy_together": "copy_, all at once"},
    "lerp_together": {"lerp_together": "lerp_, all at once"},
    "publish": {"publish": "publish with guard: finite"},
    "publish_unguarded": {"publish_unguarded": "publish with guard: off"},
    "shm_one_way": {
        "shm_one_way": "same host: publish, fetch, merge",
        "shm_fetch_merge": "same host: fetch, merge",
    },
    "shm_overlapped": {"shm_overlapped": "same host: fetched while training"},
    "shm_round": {"shm_round": "same host: all at once"},
    "tcp_one_way": {
        "tcp_one_way": "stream: publish, fetch, merge",
        "tcp_fetch_merge": "stream: fetch, merge",
    },
    "tcp_round": {"tcp_round": "stream: all at once"},
    **{
        f"{codec}_one_way": {
            f"{codec}_one_way": f"{codec}: publish, fetch, merge",
            f"{codec}_fetch_merge": f"{codec}: fetch, merge",
        }
        for codec in CODECS
    },
    "raw_tcp_one_way": {"raw_tcp_one_way": "raw TCP: fetch, then lerp_"},
    "raw_tcp_round": {"raw_tcp_round": "raw TCP: all at once"},
    "bare_zeromq_round": {"bare_zeromq_round": "bare ZeroMQ, same passes: all at once"},
    "gloo_all_reduce": {"gloo_all_reduce": "Gloo: all_reduce, then divide"},
    "gloo_pair": {"gloo_pair": "Gloo: pair exchange, then lerp_"},
}

RATIOS = (
    Ratio(("shm_one_way",), ("copy", "lerp")),
    Ratio(("shm_overlapped",), ("copy", "lerp")),
    Ratio(("shm_overlapped",), ("copy_together", "lerp_together")),
    Ratio(("shm_round",), ("copy", "lerp")),
    Ratio(("shm_round",), ("copy_together", "lerp_together")),
    Ratio(("gloo_all_reduce",), ("shm_round",)),
    Ratio(("gloo_pair",), ("shm_round",)),
    Ratio(("raw_tcp_one_way",), ("tcp_fetch_merge",)),
    Ratio(("raw_tcp_round",), ("tcp_round",)),
    Ratio(("bare_zeromq_round",), ("tcp_round",)),
    Ratio(("gloo_all_reduce",), ("tcp_round",)),
    Ratio(("gloo_pair",), ("tcp_round",)),
    Ratio(("publish",), ("publish_unguarded",)),
    *(Ratio((f"{codec}_fetch_merge",), ("tcp_fetch_merge",)) for codec in CODECS),
)

PLANE = Suite(MEASURES, RATIOS, ports=(*LINKS, RAW_TCP, BARE_ZEROMQ))
