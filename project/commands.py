"""How `manage.py` runs a command."""

from typing import Any

from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand, CommandError


class Utility(ManagementUtility):
    """Django's; development servers that do not run are said in one sentence, with the command's own exit code.

    A command that promises an exit code for servers that are away has it as `unavailable_returncode`; 1 otherwise.
    """

    def fetch_command(self, subcommand: str) -> BaseCommand:
        command = super().fetch_command(subcommand)
        check = command.check

        def checked(*args: Any, **options: Any) -> None:
            from project.checks import absent_servers  # needs the settings, which Django has loaded by now

            if absent := absent_servers():
                one, other = ("server", "does") if len(absent) == 1 else ("servers", "do")
                raise CommandError(
                    f"The development {one} {' and '.join(absent)} {other} not run, and no other address is given: "
                    "type manage.py devservices up.",
                    returncode=getattr(command, "unavailable_returncode", 1),
                )
            check(*args, **options)

        if subcommand != "check":  # which lists all that is wrong
            command.check = checked  # type: ignore[method-assign]
        return command
