"""Runtimes whose time a test lets pass."""

from dpwa.runtime import SystemRuntime


class Time(SystemRuntime):
    """The seconds that a test says."""

    seconds = 0.0

    def now(self):
        return self.seconds


class Ahead(SystemRuntime):
    """The time of this machine, and as many seconds more as a test lets pass."""

    seconds = 0.0

    def now(self):
        return super().now() + self.seconds
