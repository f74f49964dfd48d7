"""One worker process with one thread: `python -m project.replay.worker NUMBER QUEUE EVENTS`.

Dramatiq's own command stops all its workers when one dies; here each is to be killed and started again by itself.
"""

import logging
import sys
from pathlib import Path

import django

READY = "ready"


def main(number: int, queue: str, events: Path) -> None:
    django.setup()

    import dramatiq

    import billing.actors
    import project.replay.naive_actor  # noqa: F401 - declares its actor
    from billing.simulators.stopping import wait_for_stop_signal
    from project.replay.events import EventFile, StepHandler

    handler = StepHandler(EventFile(events, number))
    for name in ("leases", "billing", "project.replay"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)  # the steps are told at this level, whatever is to be shown
    worker = dramatiq.Worker(billing.actors.invoice_customer.broker, queues={queue}, worker_threads=1)
    worker.start()
    print(READY, flush=True)
    wait_for_stop_signal()
    worker.stop(timeout=2_000)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
