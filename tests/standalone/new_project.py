"""A Django project made from nothing, with one of the reusable apps copied into it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class NewProject:
    """What `django-admin startproject shop` makes, in `folder`, on a database of its own."""

    def __init__(self, folder: Path, *, database_url: str) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("DJANGO_SETTINGS_MODULE", "PYTHONPATH")
        } | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error::DeprecationWarning"}
        self.run("-m", "django", "startproject", "shop", ".")
        self.run("manage.py", "startapp", "orders")
        host = database_url.removeprefix("postgresql://")
        user, _, rest = host.rpartition("@")
        address, _, name = rest.partition("/")
        server, _, port = address.partition(":")
        self.add_settings(
            "DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', "
            f"'HOST': {server!r}, 'PORT': {port!r}, 'USER': {user!r}, 'NAME': {name!r}}}}}\n"
            "INSTALLED_APPS += ['orders']\n"
        )

    def add_app(self, name: str) -> None:
        shutil.copytree(REPOSITORY / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def add_settings(self, text: str) -> None:
        with (self.folder / "shop" / "settings.py").open("a") as file:
            file.write(text)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).write_text(text)

    def run(self, *arguments: str) -> str:
        completed = self._completed(*arguments)
        assert completed.returncode == 0, f"{arguments}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def fail(self, *arguments: str) -> str:
        """Run what must fail with a sentence and no traceback; return what it says."""
        completed = self._completed(*arguments)
        assert completed.returncode != 0, f"{arguments}: {completed.stdout}{completed.stderr}"
        assert "Traceback" not in completed.stderr, completed.stderr
        return completed.stderr

    def _completed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def shell(self, code: str) -> str:
        """Run `code` in the project, as a script of its own would."""
        self.write(
            "script.py",
            f"import django\nimport os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\ndjango.setup()\n{code}",
        )
        return self.run("script.py")
