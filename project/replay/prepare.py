"""Fills the replay's own database: `python -m project.replay.prepare FOLDER CUSTOMERS SEED PERIOD`."""

import sys
from datetime import date
from pathlib import Path

import django

HEAVY_SHARE = 0.04
"""More heavy customers than a sample usually has: they are what outlasts a lease."""


def main(folder: Path, customers: int, seed: int, period: str) -> None:
    django.setup()

    from django.core.management import call_command
    from django.db import connection

    from billing.simulators.sample import Sample
    from billing.simulators.sample_files import write_all
    from project.replay.naive import CREATE_TABLE

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(CREATE_TABLE)
    month = date.fromisoformat(f"{period}-01")
    write_all(folder, Sample(customers, seed, month, heavy_share=HEAVY_SHARE, idle_share=0))
    for kind in ("customers", "prices", "usage"):
        call_command(f"import_{kind}", str(folder / f"{kind}.csv"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
