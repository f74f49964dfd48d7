"""`manage.py import_usage FILE`"""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from billing.imports import fields
from billing.imports.command import ImportCommand
from billing.imports.focus import FocusImporter
from billing.imports.usage import NegativeRows, UsageImporter


class Command(ImportCommand):
    help = "Take usage from a CSV file of our own layout, or of FOCUS 1.0."
    epilog = """\
columns of --format csv:
  key           names the event within its source, for ever
  customer      code
  metric        what is counted; its price must be known (import_prices)
  quantity      up to 15 decimals; a negative one is a credit, set off against the rest of its line (--negative-rows)
  occurred_at   with offset from UTC: 2026-05-31T23:59:59+02:00
  source        who measured (optional: --source)
  subject       what was metered; an invoice has one line per metric and subject (optional)
  amount        net amount of a row that arrives priced, with its currency and tax_category (optional)

example:
  source,key,customer,metric,subject,quantity,occurred_at
  meter,C00001-000001,C00001,compute.hours,compute-0001,21.5,2026-05-02T10:00:00Z

  manage.py import_usage usage.csv
  manage.py import_usage focus.csv --format focus --customer-column SubAccountName --negative-rows refuse

--format focus takes BilledCost as it is for the net amount. Rows are the same charge when provider, accounts, charge
period, service, SKU, resource and description are; where the file has an id per row, --key-column names it.
"""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--format", choices=["csv", "focus"], default="csv", help="default: %(default)s")
        parser.add_argument("--source", help="where the file has no such column (default: the format)")
        parser.add_argument(
            "--negative-rows",
            type=NegativeRows,
            choices=list(NegativeRows),
            default=NegativeRows.NET,
            help="net: take them, they reduce their line; refuse: report them (default: %(default)s)",
        )
        focus = parser.add_argument_group("--format focus")
        focus.add_argument("--customer-column", metavar="NAME", default="SubAccountId", help="default: %(default)s")
        focus.add_argument("--key-column", metavar="NAME", default="", help="column with an id of the row")
        focus.add_argument("--tax-category", metavar="NAME", default="standard", help="default: %(default)s")

    def importer(self, options: dict[str, Any]) -> UsageImporter:
        source = _name("--source", options["source"] or options["format"], 100)
        if options["format"] == "csv":
            return UsageImporter(source=source, negative_rows=options["negative_rows"])
        return FocusImporter(
            source=source,
            customer_column=options["customer_column"],
            key_column=options["key_column"],
            tax_category=_name("--tax-category", options["tax_category"], 30),
            negative_rows=options["negative_rows"],
        )


def _name(option: str, value: str, max_length: int) -> str:
    try:
        return fields.text(option, value, max_length)
    except fields.Refused as refused:
        raise CommandError(str(refused), returncode=2) from refused
