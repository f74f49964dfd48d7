"""Jobs that run once: the effect and its receipt commit together.

    @dramatiq.actor
    @once("welcome:{user_id}")
    def welcome(user_id: int) -> None:
        Bonus.objects.create(user_id=user_id, points=100)

A lock cannot do this. It is free again when the first run ends, and the second message is popped after that. The
receipt is a row with a unique key that outlives the job:

    first                                     second
    1 BEGIN
    2 INSERT receipt
    3 INSERT bonus                            INSERT receipt: waits for the first
    4 COMMIT                                  finds the receipt: returns its outcome, nothing runs
      or ROLLBACK, or its process dies        the insert succeeds: this is the first run now

An effect outside the database (an HTTP call, a file) cannot share the receipt's transaction. Publish it through an
outbox, which can. An actor that insists says by name what a crash between the effect and its receipt means:
`on_crash="retry"` (it may happen twice) or `on_crash="park"` (it may not have happened; a person decides).
"""

import functools
import inspect
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from psycopg.pq import TransactionStatus

from leases import fence
from leases.conf import conf
from leases.errors import LeaseBusy, LeaseLost, LeaseUnavailable, StaleToken
from leases.jobs import receipt_sql
from leases.jobs.errors import EffectRolledBack, ReceiptBusy, ReceiptUnfinished, TransactionEnded
from leases.jobs.keys import KeyTemplate
from leases.jobs.messages import answering, current_id, put_back, refuse_actor, wants_result
from leases.jobs.models import MAX_NAME_LENGTH, Receipt
from leases.jobs.outside import run_outside
from leases.jobs.repeats import Once, as_json, find_earlier, log, refuse_foreign

P = ParamSpec("P")
R = TypeVar("R")

_AGAIN = frozenset({"40001", "40P01"})  # serialization failure, deadlock: PostgreSQL asks to start over
_ATTEMPTS = 5


def once(
    key: str,
    *,
    on_crash: Literal["retry", "park"] | None = None,
    retention: timedelta | None = None,
    name: str | None = None,
    using: str = "default",
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Have an actor take effect once per key, however often and whenever its message is delivered.

    The body runs in a transaction on `using`, together with its receipt. Whoever comes second, before, during or long
    after the first run, gets the first one's outcome and runs nothing; it is counted on the receipt. If the first run
    takes longer than LEASES_RECEIPT_WAIT, the second goes back to the queue. If it fails or its process dies, its
    effect and its receipt are gone together and the next message runs.

    key: a template over the function's parameters, as in "welcome:{user_id}". on_crash: for an effect outside the
    database, see above; the body then runs under a lease and outside any transaction, and may raise
    `leases.jobs.NothingDone` to say that it did not take effect. retention: how long the receipt is kept at least;
    default for ever. name: the function's identity, default its module and name; keep the old one when it moves.

    What the function returns must be JSON, and every caller gets it as JSON says it: a list for a tuple. Raises
    OutcomeNotJson, KeyTaken when another function has used the key, InvalidKey, EffectRolledBack when the body left a
    transaction that cannot commit, TransactionEnded when it ended that by SQL, and outside a worker, or called directly
    by another actor, ReceiptBusy, LeaseBusy and LeaseUnavailable. Put it under `@dramatiq.actor` and under `@leased`.
    """
    if not isinstance(key, str):
        raise TypeError(f'the key of a job is text, not {key!r:.100}; write @once("...") with it')
    if on_crash not in (None, "retry", "park"):
        raise ValueError(f'on_crash is "retry" or "park", not {on_crash!r}; leave it out if the effect is a row')
    if retention is not None and retention <= timedelta(0):
        raise ValueError(
            f"retention is a positive timedelta, not {retention!r}; leave it out to keep receipts for ever"
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        refuse_actor("once", function)
        if hasattr(function, "lease_template"):
            raise TypeError(f"{function.__qualname__} is leased; put @once under @leased")
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function; once() runs in a database transaction")
        identity = name or f"{function.__module__}.{function.__qualname__}"
        if len(identity) > MAX_NAME_LENGTH:
            raise ValueError(
                f"the name {identity!r:.60} is longer than {MAX_NAME_LENGTH} characters; give a shorter one"
            )
        spec = Once(KeyTemplate(key, function), identity, retention, using)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
            value = spec.key.of(*args, **kwargs)
            work = functools.partial(function, *args, **kwargs)
            with answering(run) as message:
                try:
                    outcome = _run(spec, value, work, on_crash=on_crash)
                except (LeaseBusy, LeaseUnavailable, ReceiptBusy) as error:
                    if message is None:
                        raise
                    put_back(error)
                    return None
                except (LeaseLost, StaleToken) as error:
                    if message is None:
                        raise
                    put_back(error, lost=True)
                    return None
                return outcome if message is None or wants_result() else None

        run.once = spec  # type: ignore[attr-defined]  # how send_once() and the workload command find it
        return run

    return decorate


def _run(spec: Once, key: str, work: Callable[[], Any], *, on_crash: Literal["retry", "park"] | None) -> Any:
    """Run `work` once; raises LeaseUnavailable when the database was away before it began: nothing was done."""
    begun = False
    nested = connections[spec.using].in_atomic_block

    def begin() -> Any:
        nonlocal begun
        begun = True
        return work()

    try:
        if on_crash is None:
            return run_inside(spec, key, begin)
        return run_outside(spec, key, begin, on_crash=on_crash)
    except (OperationalError, InterfaceError) as error:
        if begun or nested:
            raise
        raise LeaseUnavailable(
            key, reason=f"the database does not answer as it should ({error})", action="run"
        ) from error


def run_inside(spec: Once, key: str, work: Callable[[], Any]) -> Any:
    """Run `work` and commit its receipt with it, or return the outcome of the run that did.

    A first run that looked for a receipt before it inserts its own would pay for one statement more, and a repeat that
    inserts in vain for three. So this does first what the last job needed.
    """
    nested = connections[spec.using].in_atomic_block
    for attempt in range(_ATTEMPTS):
        looks = attempt > 0 or nested or spec.repeats
        if looks:
            earlier = find_earlier(spec, key)
            spec.repeats = earlier is not None
            if earlier is not None:
                return earlier.outcome
        try:
            with transaction.atomic(using=spec.using):
                receipt = _insert(spec, key)
                if receipt is None:
                    if looks and refuse_foreign(spec, key) == Receipt.State.STARTED:
                        raise ReceiptUnfinished(key)
                    raise _SomebodyElse
                with connections[spec.using].execute_wrapper(functools.partial(_stay_in_transaction, key)):
                    outcome = work()
                if not _can_commit(spec.using):
                    raise EffectRolledBack(key)
                text = as_json(key, outcome)
                if text is not None:
                    receipt_sql.keep_outcome(receipt, text, using=spec.using)
        except _SomebodyElse as other:
            if nested and other.cause is not None:
                raise other.cause from None
            continue
        log("receipt.done", "Ran %s.", spec, key)
        return None if text is None else json.loads(text)
    raise ReceiptBusy(key, waited=timedelta(0))


class _SomebodyElse(Exception):
    """Another run of the key committed first; look again for what it left."""

    def __init__(self, cause: Exception | None = None) -> None:
        self.cause = cause


def _insert(spec: Once, key: str) -> int | None:
    try:
        return receipt_sql.insert(
            key,
            spec.name,
            message_id=current_id(),
            wait=conf.RECEIPT_WAIT,
            idle=conf.RECEIPT_IDLE,
            retention=spec.retention,
            using=spec.using,
        )
    except DatabaseError as error:
        if fence.sqlstate(error) == fence.LOCK_NOT_AVAILABLE:
            raise ReceiptBusy(key, waited=conf.RECEIPT_WAIT) from error
        if fence.sqlstate(error) in _AGAIN:
            raise _SomebodyElse(error) from error
        raise


def _stay_in_transaction(
    key: str, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Execute one statement of the body; what comes after a COMMIT or ROLLBACK in SQL would not be the receipt's."""
    result = execute(sql, params, many, context)
    connection = context["connection"]
    # Outside a transaction there is no body: a run whose interrupt landed as this was set up has left it here.
    if connection.in_atomic_block and connection.connection.info.transaction_status == TransactionStatus.IDLE:
        connection.needs_rollback = True  # the body may go on in spite of the error, and PostgreSQL let it
        raise TransactionEnded(key)
    return result


def _can_commit(using: str) -> bool:
    """Say whether the open transaction still can; if not, Django and PostgreSQL would roll it back without a word."""
    connection: Any = connections[using]  # the stubs do not know of the driver's connection
    return (
        not connection.needs_rollback
        and connection.connection is not None
        and connection.connection.info.transaction_status == TransactionStatus.INTRANS
    )
