"""What `dpwa bench tables` measures."""

from __future__ import annotations

from dpwa.bench.suite import LinkSettings, Ratio, Suite

LINKS = {"shm": LinkSettings("shm"), "tcp": LinkSettings("tcp")}
ROWS_SHARE = 0.01  # of all rows, which a measure of some rows takes
ALONE = "_alone"  # ends the name of what one process does while the others only serve

_WHO = {"shm": "dpwa, same host", "tcp": "dpwa, streamed"}
_WHAT = {
    "get_rows": "get 1 % of the rows",
    f"get_rows{ALONE}": "the same, by one process",
    "get_all": "get the whole table",
    "add_rows": "add to 1 % of the rows",
    "add_rows_async": "the same, without waiting",
    "add_all": "add to the whole table",
}
WHOLE = tuple(f"{link}_{kind}" for kind in ("get_all", "add_all") for link in LINKS)

MEASURES: dict[str, dict[str, str]] = {
    **{
        f"{link}_{kind}": {f"{link}_{kind}": f"{name}: {what}"}
        for kind, what in _WHAT.items()
        for link, name in _WHO.items()
    },
    "gloo_all_gather": {"gloo_all_gather": "Gloo: all_gather of the table"},
    "gloo_all_reduce": {"gloo_all_reduce": "Gloo: all_reduce of a table"},
}
RATIOS = (
    *(Ratio(("gloo_all_gather",), (f"{link}_get_all",)) for link in LINKS),
    *(Ratio(("gloo_all_reduce",), (f"{link}_add_all",)) for link in LINKS),
)
TABLES = Suite(MEASURES, RATIOS, ports=tuple(LINKS))
