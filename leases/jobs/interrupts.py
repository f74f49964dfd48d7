"""Interrupting the thread of a Dramatiq worker whose job lost its lease.

An asynchronous exception lands between two bytecodes: at once in Python code, and only when the call returns in C code
such as a sleep, a socket or a regular expression. It is the third of four steps, and nothing depends on it.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dramatiq.middleware.threading import Interrupt, raise_thread_exception

from leases.lease import Lease


class LeaseInterrupt(Interrupt):
    """The lease of the running job is lost; raised in the job's thread, and never caught by `except Exception`."""

    def __init__(self) -> None:
        super().__init__("The lease of the running job is lost; the job has to run again.")


@contextmanager
def interrupted_on_loss(lease: Lease) -> Iterator[None]:
    """Raise LeaseInterrupt in this thread as soon as `lease` is lost while the body runs, and never after it."""
    thread_id = threading.get_ident()
    raised = False

    def interrupt() -> None:
        nonlocal raised
        raised = True
        raise_thread_exception(thread_id, LeaseInterrupt)

    try:
        with lease.interruptible(interrupt):
            # One that was lost before this would interrupt nobody.
            lease.check()
            yield
    finally:
        if raised:
            # One that was raised as the body ended, and has not landed yet, must not land in the next job.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), None)
