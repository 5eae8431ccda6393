"""Signal handling: a signal sets a flag that the loop checks before every trip, microbatch and batch; a second one
exits."""

from __future__ import annotations

MAX_GRACE = 10  # seconds of processor time, at most, between SIGXCPU and the hard limit, which kills
