"""`once` and `leased` in a project that has only `leases`, Dramatiq and its own broker."""

import os

from tests.standalone.new_project import NewProject
from tests.standalone.test_leases_alone import SETTINGS

MODELS = """
from django.db import models


class Welcome(models.Model):
    user = models.IntegerField()
"""
JOBS = f"""
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

broker = RedisBroker(url={os.environ.get("REDIS_URL", "")!r}, namespace="shop")
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)

from leases import leased, once
from orders.models import Welcome


@dramatiq.actor
@once("welcome:{{user_id}}")
def welcome(user_id: int) -> None:
    Welcome.objects.create(user=user_id)


@dramatiq.actor
@leased("order:{{number}}", on_conflict="serial")
def ship(number: int) -> None:
    Welcome.objects.create(user=-number)
"""
SCRIPT = """
from orders.jobs import broker, ship, welcome
from orders.models import Welcome
from leases import send_once
from leases.models import Receipt
import dramatiq

broker.flush_all()
for _ in range(50):
    welcome.send(7)
ship.send(3)
worker = dramatiq.Worker(broker, worker_threads=4, worker_timeout=100)
worker.start()
broker.join("default", timeout=60_000)
worker.join()
worker.stop()
print("welcomed:", Welcome.objects.filter(user=7).count(), "asked again:", Receipt.objects.get().asked_again)
print("shipped:", Welcome.objects.filter(user=-3).count())
print("sent again:", send_once(welcome, 7))
"""


def test_new_project_runs_jobs_once_and_in_turn(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.write("orders/models.py", MODELS)
    new_project.write("orders/jobs.py", JOBS)
    new_project.run("manage.py", "makemigrations", "orders")
    new_project.run("manage.py", "migrate")
    assert new_project.shell(SCRIPT).splitlines() == ["welcomed: 1 asked again: 49", "shipped: 1", "sent again: None"]
