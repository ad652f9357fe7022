from __future__ import annotations

import math
import os
import signal
import threading

import pytest
from support.times import SetClock

from dpwa.clock import SystemClock
from dpwa.launch import stopping
from dpwa.launch.stopping import StopLadder, interrupted_by_signals, stop_on_signals


def idle() -> float:
    return 0.0


@pytest.fixture
def clock() -> SetClock:
    return SetClock(100.0)


def test_nothing_is_due_before_a_stop_is_asked_for(clock: SetClock) -> None:
    assert StopLadder(clock).next_signal() is None


def test_signals_grow_harder_as_time_passes(clock: SetClock) -> None:
    ladder = StopLadder(clock)
    ladder.came(signal.SIGINT)
    assert climbed(ladder, clock) == [(0, signal.SIGINT), (5, signal.SIGTERM), (7, signal.SIGKILL)]


def test_a_second_interrupt_kills_at_once_and_a_third_adds_nothing(clock: SetClock) -> None:
    ladder = StopLadder(clock)
    ladder.came(signal.SIGINT)
    assert ladder.next_signal() == signal.SIGINT
    ladder.came(signal.SIGINT)
    assert ladder.next_signal() == signal.SIGKILL
    ladder.came(signal.SIGINT)
    assert ladder.next_signal() is None


def test_asking_to_stop_again_does_not_kill(clock: SetClock) -> None:
    ladder = StopLadder(clock)
    ladder.came(signal.SIGHUP)
    ladder.came(signal.SIGTERM)
    assert [ladder.next_signal(), ladder.next_signal()] == [signal.SIGHUP, None]


def climbed(ladder: StopLadder, clock: SetClock) -> list[tuple[float, signal.Signals]]:
    seen = []
    for _ in range(40):  # ten seconds
        seen += [(clock.time - 100, due)] if (due := ladder.next_signal()) else []
        clock.time += 0.25
    return seen


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_nodes_get_the_signal_that_came_and_are_killed_7_s_later(
    clock: SetClock, number: signal.Signals
) -> None:
    ladder = StopLadder(clock)
    ladder.came(number)
    once_more = [] if number == signal.SIGTERM else [(5, signal.SIGTERM)]
    assert climbed(ladder, clock) == [(0, number), *once_more, (7, signal.SIGKILL)]


def test_what_is_passed_on_stops_nothing_and_comes_once_however_often_it_came(
    clock: SetClock,
) -> None:
    ladder = StopLadder(clock)
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
        ladder.came(number)
    assert climbed(ladder, clock) == [(0, signal.SIGUSR2), (0.25, signal.SIGUSR1)]
    assert not ladder.stopping


@pytest.mark.parametrize("number", stopping.STOP_SIGNALS)
def test_what_would_end_a_launcher_without_nodes_interrupts_it_but_not_its_cleaning_up(
    number: signal.Signals,
) -> None:
    with interrupted_by_signals() as end:
        for harmless in stopping.PASSED_ON:
            os.kill(os.getpid(), harmless)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        end()
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", stopping.STOP_SIGNALS)
def test_signals_to_this_process_stop_and_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    ladder = StopLadder(SystemClock())
    with stop_on_signals(ladder, idle):
        assert not ladder.stopping
        os.kill(os.getpid(), number)
        assert ladder.stopping
    assert signal.getsignal(number) is before


def test_patience_shrinks_with_every_interrupt(clock: SetClock) -> None:
    ladder = StopLadder(clock)
    patience = [ladder.patience_s]
    for _ in range(2):
        ladder.came(signal.SIGINT)
        patience.append(ladder.patience_s)
    assert patience == [math.inf, 1.0, 0.2]


def test_a_callback_that_takes_too_long_is_broken_off() -> None:
    ladder = StopLadder(SystemClock())
    with stop_on_signals(ladder, lambda: 1.1):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert ladder.next_signal() == signal.SIGTERM


def test_an_ignored_signal_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ladder = StopLadder(SystemClock())
        with stop_on_signals(ladder, idle):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not ladder.stopping
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_other_threads_touch_no_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with stop_on_signals(StopLadder(SystemClock()), idle):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
