"""`once` and `leased` in a project that has only `leases` and Dramatiq, set up as docs/a-job-ran-twice.md says."""

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
from orders.jobs import broker, refuse, ship, welcome
from orders.models import Welcome
from leases import send_once
from leases.jobs import workload
from leases.models import DeadLetter, Receipt
import dramatiq

broker.flush_all()
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
        "welcomed: 1 asked again: 49",
        "shipped: 1",
        "refused: 0 ValueError: as told",
        "measured: 0 True",
        "sent again: None",
    ]
