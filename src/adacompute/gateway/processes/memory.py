"""Memory: have the C library give freed memory back to the system.

glibc keeps what is freed inside its heap, and only gives the end of it back by itself: after large
bodies, much of what they took would stay in the memory of the process. It knows nothing of bodies.
"""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Give all free pages back, which takes milliseconds; other C libraries do it themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
