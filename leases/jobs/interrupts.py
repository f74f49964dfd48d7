"""Interrupting the thread of a Dramatiq worker whose job lost its lease.

An asynchronous exception lands between two bytecodes: at once in Python code, and only when the call returns in C code
such as a sleep, a socket or a regular expression. It is the third of four steps, and nothing depends on it.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from dramatiq.middleware.threading import Interrupt, raise_thread_exception

from leases.clock import boottime
from leases.lease import Lease

#: How long the interrupt waits for a thread that writes a log line.
_PATIENCE_S = 1.0


class LeaseInterrupt(Interrupt):
    """The lease of the running job is lost; raised in the job's thread, and never caught by `except Exception`."""

    def __init__(self) -> None:
        super().__init__("The lease of the running job is lost; the job has to run again.")


@contextmanager
def interrupted_on_loss(lease: Lease) -> Iterator[None]:
    """Raise LeaseInterrupt in this thread as soon as `lease` is lost while the body runs, and never after it.

    A transaction that it left open is closed with its connection, so that the thread is fit for the next job.
    """
    thread_id = threading.get_ident()
    raised = False
    of_the_caller = _in_transaction()

    def interrupt() -> None:
        nonlocal raised
        # Landed in there, it could leave the lock of a handler taken, and stop every thread that logs: the keeper, too.
        patient_until = boottime() + _PATIENCE_S
        while _is_logging(thread_id) and boottime() < patient_until:
            time.sleep(0.001)
        raised = True
        raise_thread_exception(thread_id, LeaseInterrupt)

    try:
        with lease.interruptible(interrupt):
            # One that was lost before this would interrupt nobody.
            lease.check()
            yield
    except LeaseInterrupt as landed:
        # Whoever keeps it would keep what the body held: an inner lease whose block it did not let end.
        traceback.clear_frames(landed.__traceback__)
        raise
    except Exception as error:
        # It may have come of the interrupt, as when that landed in a commit, in which Django cannot end a transaction.
        if _follows_interrupt(error):
            raise LeaseInterrupt from error
        raise
    finally:
        if raised:
            _take_back(thread_id)
            # Landed between the beginning of a transaction and its block, or in its end, it leaves Django inside.
            for connection in _in_transaction() - of_the_caller:
                connection.in_atomic_block = False
                connection.close()


class _TakenBack(BaseException):
    pass


def _take_back(thread_id: int) -> None:
    """Have an interrupt that was raised as the body ended, and has not landed yet, not land in the next job.

    Another one takes its place, and lands here. Just to clear it leaves CPython 3.11 looking for it, and then whatever
    a debugger or coverage traces, in any thread, hangs where it begins.
    """
    try:
        raise_thread_exception(thread_id, _TakenBack)
        while True:
            pass
    except _TakenBack:
        return


def _is_logging(thread_id: int) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code.co_filename != logging.__file__:
        frame = frame.f_back
    return frame is not None


def _follows_interrupt(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, LeaseInterrupt):
        error = error.__context__
    return error is not None


def _in_transaction() -> set[BaseDatabaseWrapper]:
    """Return this thread's connections on which Django has a transaction open."""
    return {
        connection
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None and (connection.in_atomic_block or not connection.get_autocommit())
    }
