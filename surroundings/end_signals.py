"""The signals that ask a process to end."""

from __future__ import annotations

import signal

# What a system, a scheduler or a user sends to have a process end: each by itself would end it at once. SIGQUIT does,
# as it is for whoever wants that, and what says that the program is broken (SIGSEGV, SIGABRT ...).
ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPWR)
TIMERS = (signal.SIGXCPU, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)  # these may come again by themselves
HANDLED = ASKED + TIMERS
