"""What each process of a build loads first: of what ``entry`` settles, all that they do not inherit."""

from . import entry

entry.without_torch()
