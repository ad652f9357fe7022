"""What `dpwa bench collectives` measures."""

from __future__ import annotations

from dpwa.bench.suite import LinkSettings, Ratio, Suite

LINKS = {"shm": LinkSettings("shm"), "tcp": LinkSettings("tcp")}
GLOO = "gloo"
SMALL_BYTES = 1000

_WHO = {"shm": "dpwa, same host", "tcp": "dpwa, streamed", GLOO: "Gloo"}
_WHAT = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "barrier": "barrier",
    "small_all_reduce": "all_reduce of 1 KB",
}

MEASURES: dict[str, dict[str, str]] = {
    f"{who}_{kind}": {f"{who}_{kind}": f"{name}: {what}"}
    for kind, what in _WHAT.items()
    for who, name in _WHO.items()
}
RATIOS = tuple(Ratio((f"{GLOO}_{kind}",), (f"{link}_{kind}",)) for kind in _WHAT for link in LINKS)
COLLECTIVES = Suite(MEASURES, RATIOS, ports=tuple(LINKS))
