"""`outbox` in a project that has neither Redis nor leases."""

from tests.docs.reading import document
from tests.standalone.new_project import NewProject

SETTINGS = """
INSTALLED_APPS += ["outbox"]
if "MAILERS" in globals():  # as Django makes a project from 6.1 on
    MAILERS["default"] = {
        "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
        "OPTIONS": {"file_path": BASE_DIR / "mails"},
    }
else:
    EMAIL_TIMEOUT = 10
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = BASE_DIR / "mails"
"""
SCRIPT = """
from django.db import transaction
from outbox import publish
from outbox.errors import NotInTransaction

content = {"to": "ada@example.org", "subject": "Welcome", "text": "Hello Ada"}
try:
    publish("email", content, dedupe_key="welcome:1")
except NotInTransaction:
    print("refused outside a transaction")
for _ in range(2):
    with transaction.atomic():
        publish("email", content, dedupe_key="welcome:1")
"""


def test_new_project_sends_one_mail_for_two_publications(new_project: NewProject) -> None:
    new_project.add_app("outbox")
    new_project.add_settings(SETTINGS)
    new_project.run("manage.py", "migrate")
    assert new_project.shell(SCRIPT).splitlines() == ["refused outside a transaction"]
    new_project.run("manage.py", "drain_outbox", "--until-empty")
    new_project.run("manage.py", "drain_outbox", "--until-empty")
    mails = list((new_project.folder / "mails").iterdir())
    assert len(mails) == 1
    assert "Subject: Welcome" in mails[0].read_text()


def test_test_of_the_documents_passes_in_a_new_project(new_project: NewProject) -> None:
    new_project.add_app("outbox")
    new_project.add_settings(SETTINGS)
    (code,) = (code for code in document("docs/outbox.md").blocks("python") if "class WelcomeTest" in code)
    new_project.write("orders/tests.py", code)
    assert "1 claimed, 1 sent" in new_project.run("manage.py", "test")
