"""Read the memory use of this process from the files of Linux in /proc."""

from __future__ import annotations

import threading
from pathlib import Path

BYTES_PER_KB = 1024  # a kB in /proc is 1024 bytes
RESET_PEAK = "5"  # resets the peak of Rss. See clear_refs in proc(5)
SAMPLE_PAUSE_S = 0.002


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def memory_of_process() -> dict[str, int]:
    rollup = _kilobytes(Path("/proc/self/smaps_rollup"))
    status = _kilobytes(Path("/proc/self/status"))
    found = {"pss": rollup["Pss"], "rss": rollup["Rss"], "peak_rss": status["VmHWM"]}
    return {key: size_kb * BYTES_PER_KB for key, size_kb in found.items()}


class PeakOfPss:
    """The peak of Pss in a `with` block, from samples. Linux does not record this peak."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="pss")

    def __enter__(self) -> PeakOfPss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.nbytes = max(self.nbytes, memory_of_process()["pss"])
            if self._ended.wait(SAMPLE_PAUSE_S):
                return


def _kilobytes(path: Path) -> dict[str, int]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1:] == ["kB"]}
