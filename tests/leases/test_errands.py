"""What a side task of a lease that failed leaves in the log."""

import pytest
from django.db import OperationalError

from leases.errands import Errands


@pytest.mark.parametrize(
    ("error", "level", "has_traceback"),
    [(OperationalError("the connection\nis lost"), "WARNING", False), (ZeroDivisionError("no idea"), "ERROR", True)],
)
def test_errand_that_failed_says_what_was_not_done_and_only_the_unforeseen_shows_its_traceback(
    error: Exception, level: str, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def errand() -> None:
        raise error

    errands = Errands()
    errands.run(errand, failed="It was not reported; the watcher reports it.")
    errands.finish()
    (line,) = caplog.records
    assert (line.levelname, vars(line)["event"]) == (level, "errand.failed")
    assert line.getMessage().startswith("It was not reported; the watcher reports it. (")
    assert "\n" not in line.getMessage()
    assert bool(line.exc_info) is has_traceback
