"""`once`, `leased` and the brokers in a project that has only `leases` and Dramatiq.

It is set up as docs/a-job-ran-twice.md says.
"""

import os

from tests.docs.reading import document
from tests.standalone.new_project import NewProject
from tests.standalone.test_leases_alone import SETTINGS

MODELS = """
from django.db import models


class Welcome(models.Model):
    user = models.IntegerField()
"""
JOBS = """
from leases import leased, once
from orders.models import Welcome


@dramatiq.actor
@once("welcome:{user_id}")
def welcome(user_id: int) -> None:
    Welcome.objects.create(user=user_id)


@dramatiq.actor
@leased("order:{number}", on_conflict="serial")
def ship(number: int) -> None:
    Welcome.objects.create(user=-number)


@dramatiq.actor(max_retries=0)
@once("refuse:{number}")
def refuse(number: int) -> None:
    Welcome.objects.create(user=0)
    raise ValueError("as told")
"""
SCRIPT = """
import os
import time
from unittest import mock
from orders.jobs import broker, refuse, ship, welcome
from orders.models import Welcome
from leases import send_once
from leases.jobs import workload
from leases.jobs.brokers import make_broker
from leases.models import DeadLetter, Receipt
import dramatiq
from dramatiq.brokers.redis import RedisBroker


def is_taken_from_a_worker_whose_clock_is_slow(slow):
    broker.client.flushdb()
    welcome.send(0)
    with mock.patch("dramatiq.brokers.redis.current_millis", lambda: int(time.time() * 1000) - 61_000):
        assert slow.do_fetch("default", 1)
    other = RedisBroker(client=broker.client, middleware=[], maintenance_chance=1_000_000)
    return bool(other.do_fetch("default", 1) or other.do_fetch("default", 1))


theirs, ours = RedisBroker(url=os.environ["REDIS_URL"]), make_broker(os.environ["REDIS_URL"])
print("taken from Dramatiq's:", is_taken_from_a_worker_whose_clock_is_slow(theirs))
print("taken from ours:", is_taken_from_a_worker_whose_clock_is_slow(ours))
broker.client.flushdb()
for _ in range(50):
    welcome.send(7)
ship.send(3)
refuse.send(1)
worker = dramatiq.Worker(broker, worker_threads=4, worker_timeout=100)
worker.start()
broker.join("default", timeout=60_000)
worker.join()
worker.stop()
(queue,) = workload.measure()
print("welcomed:", Welcome.objects.filter(user=7).count(), "asked again:", Receipt.objects.get().asked_again)
print("shipped:", Welcome.objects.filter(user=-3).count())
print("refused:", Welcome.objects.filter(user=0).count(), DeadLetter.objects.get().reason)
print("measured:", queue.waiting, queue.mean_run_s is not None)
print("sent again:", send_once(welcome, 7))
"""

# django_dramatiq does this while it is being loaded itself: there are settings, and no models yet.
EARLY = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.utils.module_loading import import_string
{setting}
middleware = [import_string(name)() for name in DRAMATIQ_BROKER["MIDDLEWARE"]]
broker = import_string(DRAMATIQ_BROKER["BROKER"])(middleware=middleware, **DRAMATIQ_BROKER["OPTIONS"])
print([type(one).__name__ for one in broker.middleware])
"""


def test_broker_and_middleware_of_a_setting_can_be_made_before_there_are_models(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    (setting,) = (code for code in document("docs/a-job-ran-twice.md").blocks("python") if "DRAMATIQ_BROKER" in code)
    new_project.write("early.py", EARLY.format(setting=setting))
    assert new_project.run("early.py").startswith("['Presence', 'DatabaseConnections', 'CurrentMessage', ")


def test_new_project_runs_jobs_once_and_in_turn(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.write("orders/models.py", MODELS)
    (setting_up,) = (code for code in document("docs/a-job-ran-twice.md").blocks("python") if "set_broker" in code)
    url = os.environ["REDIS_URL"]
    new_project.write("orders/jobs.py", setting_up.replace("redis://127.0.0.1:6379/0", url) + JOBS)
    new_project.run("manage.py", "makemigrations", "orders")
    new_project.run("manage.py", "migrate")
    assert new_project.shell(SCRIPT).splitlines() == [
        "taken from Dramatiq's: True",
        "taken from ours: False",
        "welcomed: 1 asked again: 49",
        "shipped: 1",
        "refused: 0 ValueError: as told",
        "measured: 0 True",
        "sent again: None",
    ]


def test_doctor_looks_at_actors_that_nothing_has_imported(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.add_settings(
        "LEASES_SCHEDULE = {'nightly': {'actor': 'plain', 'cron': '0 3 * * *'}}\n"  # not @once
    )
    new_project.write("orders/actors.py", "import dramatiq\n\n\n@dramatiq.actor\ndef plain() -> None: ...\n")
    new_project.run("manage.py", "migrate")
    assert "W051" in new_project.run("manage.py", "leases", "doctor")
