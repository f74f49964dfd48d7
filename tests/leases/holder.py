"""A process that holds a lease until it loses it: `python -m tests.leases.holder RESOURCE TTL_SECONDS`."""

import os
import sys
import time
from datetime import timedelta

import django


def main(resource: str, ttl_s: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from leases import hold

    with hold(resource, ttl=timedelta(seconds=float(ttl_s))) as lease:
        while True:
            lease.check()
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
