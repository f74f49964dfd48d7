"""Programs that the tests start as real processes: `python -m tests.faults.program NAME ARGUMENT...`.

Each prints one JSON object as its last line: what came of it, or the class of the error that ended it.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django


def invoice(customer_id: str, period: str, patience_s: str) -> dict[str, Any]:
    """Invoice one customer; while somebody else holds the lease, ask again for up to `patience_s`."""
    from billing.invoicing import invoice
    from billing.periods import Period
    from leases.errors import LeaseBusy

    deadline = time.monotonic() + float(patience_s)
    while True:
        try:
            return {"outcome": str(invoice(int(customer_id), Period.parse(period)))}
        except LeaseBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def hold(resource: str, ttl_ms: str) -> dict[str, Any]:
    """Hold a lease until a line comes on stdin."""
    from leases import hold

    with hold(resource, ttl=timedelta(milliseconds=int(ttl_ms))) as lease:
        print(json.dumps({"holder": lease.holder, "token": lease.token}), flush=True)
        sys.stdin.readline()
    return {"outcome": "released"}


def naive(job: str, ttl_ms: str) -> dict[str, Any]:
    """The incident's worker, once."""
    from project.replay.naive import Job, invoice_customer

    done = invoice_customer(Job(**json.loads(job)), timedelta(milliseconds=int(ttl_ms)))
    return {"outcome": "worked" if done else "busy"}


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {"invoice": invoice, "hold": hold, "naive": naive}


def main(name: str, *arguments: str) -> int:
    django.setup()
    try:
        result = PROGRAMS[name](*arguments)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        raise
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
