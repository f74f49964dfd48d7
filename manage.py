#!/usr/bin/env python
"""Runs the project's commands: `python manage.py help` lists them."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.db import InterfaceError, OperationalError

    from project.commands import Utility

    try:
        Utility(sys.argv).execute()
    except ImproperlyConfigured as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"manage.py: {error}")
    except (OperationalError, InterfaceError) as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"manage.py: The database does not answer as it should: {str(error).strip()}")


if __name__ == "__main__":
    main()
