"""Where figures were measured, without which they say little."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import dpwa
from dpwa.launch.environment import available_cores
from dpwa.types import StrictModel

_CPU_FILE = Path("/proc/cpuinfo")


class Machine(StrictModel):
    """The machine and the versions of what matters.

    Attributes:
        cpu: model of the processor.
        cores: number of cores that this process may use.
        platform: the operating system.
        python: version of Python.
        torch: version of PyTorch.
        dpwa: version of dpwa.
    """

    cpu: str
    cores: int
    platform: str
    python: str
    torch: str
    dpwa: str


def this_machine() -> Machine:
    """Describe this machine; torch is not imported for it."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(available_cores()),
        platform=platform.platform(),
        python=platform.python_version(),
        torch=metadata.version("torch"),
        dpwa=dpwa.__version__,
    )


def _cpu_model() -> str:
    try:
        lines = _CPU_FILE.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
