"""`leases` in a project that has never heard of billing or an outbox."""

import os

from tests.standalone.new_project import NewProject

SETTINGS = f"""
INSTALLED_APPS += ["pgtrigger", "leases"]
CACHES = {{
    "default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    "leases": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{os.environ.get("REDIS_URL", "")}"}},
}}
"""
MODELS = """
from django.db import models
from leases import FencedModel


class Order(FencedModel):
    lease_resource = "order:{number}"

    number = models.IntegerField(unique=True)
    paid = models.BooleanField(default=False)
"""
SCRIPT = """
from django.db import DatabaseError, connection
from leases import hold
from leases.errors import NotHeld
from orders.models import Order

with hold("order:7"):
    Order.objects.create(number=7)
try:
    Order.objects.filter(number=7).update(paid=True)
except NotHeld:
    print("the manager refused")
try:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE orders_order SET paid = true")
except DatabaseError as error:
    print("the database refused:", str(error).splitlines()[0])
with hold("order:7") as lease:
    with lease.transaction(), connection.cursor() as cursor:
        cursor.execute("UPDATE orders_order SET paid = true")
print("paid:", Order.objects.get().paid)
"""
UNMIGRATED = """
from leases import hold
from leases.errors import LeaseUnavailable

try:
    with hold("order:7"):
        pass
except LeaseUnavailable as error:
    print(error)
"""
PAGES = """
import re
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

settings.ALLOWED_HOSTS = ["testserver"]
client = Client()
client.force_login(User.objects.create_superuser("root"))
pages = set(re.findall('href="(/admin/leases/[^"]+)"', client.get("/admin/").content.decode()))
for page in sorted(pages):
    answer = client.get(page)
    if "/queue/" in page or answer.status_code != 200:
        print(answer.status_code, *re.findall("Jobs need a package that is missing", answer.content.decode()))
"""


def test_new_project_fences_its_own_model_with_three_lines_of_settings(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.write("orders/models.py", MODELS)
    new_project.run("manage.py", "makemigrations", "orders")
    new_project.run("manage.py", "migrate")
    assert new_project.shell(SCRIPT).splitlines() == [
        "the manager refused",
        "the database refused: not presented: order:7",
        "paid: True",
    ]


def test_changing_the_resource_template_makes_a_migration(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.write("orders/models.py", MODELS)
    new_project.run("manage.py", "makemigrations", "orders")
    new_project.run("manage.py", "makemigrations", "--check", "--dry-run")
    new_project.write("orders/models.py", MODELS.replace("order:{number}", "orders/{number}"))
    changes = new_project.run("manage.py", "makemigrations", "orders")
    assert "fence_update" in changes
    new_project.run("manage.py", "migrate")
    assert "the database refused: not presented: orders/7" in new_project.shell(SCRIPT.replace("order:7", "orders/7"))


def test_pages_and_commands_of_leases_need_no_dramatiq(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    new_project.write("dramatiq.py", "raise ModuleNotFoundError(\"No module named 'dramatiq'\", name='dramatiq')")
    new_project.run("manage.py", "migrate")
    assert "nothing is leased" in new_project.run("manage.py", "leases", "ls")
    assert "W040" in new_project.run("manage.py", "leases", "doctor")
    assert "pruned 0 receipts" in new_project.run("manage.py", "leases", "prune-jobs", "--older-than", "90d")
    assert "pip install" in new_project.fail("manage.py", "leases", "reopen", "welcome:7", "--reason", "a test")
    assert new_project.shell(PAGES).splitlines() == ["200 Jobs need a package that is missing"]


def test_lease_in_a_database_that_was_not_migrated_says_what_to_do(new_project: NewProject) -> None:
    new_project.add_app("leases")
    new_project.add_settings(SETTINGS)
    assert new_project.shell(UNMIGRATED).splitlines() == [
        "order:7 could not be leased: database 'default' has no tables of leases, so run manage.py migrate first. "
        "Nothing is held; try again later."
    ]
