"""What the import commands have in common."""

import argparse
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import outages
from billing.imports.importing import Importer, import_file
from billing.imports.reading import UnreadableFile, opened
from billing.imports.report import Report, Verdict
from billing.wording import counted

ROWS_NOT_TAKEN = 3
NO_ANSWER = 4
EXIT_CODES = """\
A row that was there before with the same content counts as known, so a file may be imported any number of times; with
other content it conflicts, and what was there stays. Problems go to standard error in the order of the file, one line
each, with the line of the file on which the row begins; the summary goes to standard output.

exit codes: 0 every row taken or known; 1 the file cannot be read, nothing taken; 2 wrong usage;
            3 some rows conflicting or refused, all others taken; 4 the database stopped answering, import it again
"""


class ImportCommand(BaseCommand):
    """Subclasses say in `importer()` what the rows mean."""

    epilog = ""
    unavailable_returncode = NO_ANSWER

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = self.epilog + "\n" + EXIT_CODES
        parser.add_argument("file", metavar="FILE", help="UTF-8, with a header; '-' reads standard input")
        parser.add_argument("--dry-run", action="store_true", help="report what would happen, and change nothing")
        parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")

    def importer(self, options: dict[str, Any]) -> Importer[Any]:
        raise NotImplementedError

    def handle(self, **options: Any) -> None:
        name = "standard input" if options["file"] == "-" else options["file"]
        report = Report(on_problem=lambda problem: self.stderr.write(f"{name}: {problem}", self.style.WARNING))

        def advice() -> str:
            taken = 0 if options["dry_run"] else report.counts[Verdict.TAKEN]
            before = f"{counted(taken, 'row')} taken before that"
            return f"{before}; import {name} again: what is there counts as known."

        try:
            with opened(options["file"]) as stream, outages.told(advice, returncode=NO_ANSWER):
                import_file(self.importer(options), stream, options["file"], report, dry_run=options["dry_run"])
        except UnreadableFile as error:
            raise CommandError(str(error)) from error
        if report.ignored_columns:
            ignored = ", ".join(map(repr, report.ignored_columns))
            self.stderr.write(f"{name}: ignored, since it means nothing here: column {ignored}", self.style.WARNING)
        if options["json"]:
            self.stdout.write(json.dumps({"dry_run": options["dry_run"], **report.as_json()}))
        else:
            self.stdout.write(f"{'dry run, ' if options['dry_run'] else ''}{report}")
        if not report.clean:
            sys.exit(ROWS_NOT_TAKEN)
