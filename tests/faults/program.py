"""Programs that the tests start as real processes: `python -m tests.faults.program NAME ARGUMENT...`.

Each ends with a JSON line of the event `result`: what came of it, or the class of the error that ended it.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import django

log = logging.getLogger("tests.faults")


def invoice(customer_id: str, period: str, wait_s: str) -> dict[str, Any]:
    """Invoice one customer, waiting for up to `wait_s` while somebody else holds the lease."""
    from billing.invoicing import invoice
    from billing.periods import Period

    outcome = invoice(int(customer_id), Period.parse(period), wait=timedelta(seconds=float(wait_s)))
    return {"outcome": outcome.kind.value}


def hold(resource: str, ttl_ms: str, until: str) -> dict[str, Any]:
    """Hold a lease until the file `until` is there."""
    from leases import hold

    with hold(resource, ttl=timedelta(milliseconds=int(ttl_ms))) as lease:
        say("held", {"holder": lease.holder, "token": lease.token})
        while not Path(until).exists():
            time.sleep(0.02)
    return {"outcome": "released"}


def lease_alone(resource: str, ttl_ms: str) -> dict[str, Any]:
    """Note a piece of work in `plain_note`, unless it is there, with nothing but a lease to prevent a second one.

    Over a connection that Django does not know, where no statement is held back once the lease is known to be lost.
    """
    from django.db import connection

    from leases import hold

    database = connection.get_new_connection({**connection.get_connection_params(), "autocommit": True})
    with database, hold(resource, ttl=timedelta(milliseconds=int(ttl_ms))) as lease:
        found = database.execute("SELECT count(*) FROM plain_note WHERE resource = %s", [resource])
        if found.fetchone() != (0,):
            return {"outcome": "noted already"}
        database.execute("INSERT INTO plain_work (resource) VALUES (%s)", [resource])
        log.info("working", extra={"event": "plain.working"})
        lease.check()
        log.info("writing", extra={"event": "plain.writing"})
        database.execute("INSERT INTO plain_note (resource) VALUES (%s)", [resource])
    return {"outcome": "noted"}


def naive(job: str, ttl_ms: str) -> dict[str, Any]:
    """The incident's worker, once."""
    from project.replay.naive import Job, invoice_customer

    lock_ttl = timedelta(milliseconds=int(ttl_ms))
    done = invoice_customer(Job(**json.loads(job)), lock_ttl=lock_ttl, lines_per_request=2)
    return {"outcome": "worked" if done else "busy"}


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "invoice": invoice,
    "hold": hold,
    "lease_alone": lease_alone,
    "naive": naive,
}


def main(name: str, *arguments: str) -> int:
    django.setup()
    try:
        result = PROGRAMS[name](*arguments)
    except Exception as error:
        say("result", {"error": type(error).__name__})
        raise
    say("result", result)
    return 0


def say(event: str, what: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **what}), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
