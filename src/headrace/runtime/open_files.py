"""How many files a process that serves may have open."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["raise_open_files"]

_OPEN_FILES = 1_048_576


def raise_open_files() -> int:
    """Raise the soft limit of open files as far as the system lets this process, and return what it is now.

    Shells give 1024, or less; a node has some ten files open for each partition of each state, and a gateway one for
    each client. It is for programs of their own: a library does not change this for the application that it is part of.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_FILES
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if wanted > soft:
        with contextlib.suppress(OSError, ValueError):  # a system may refuse what it shows as the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
