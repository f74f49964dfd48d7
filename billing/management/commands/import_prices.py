"""`manage.py import_prices FILE`"""

from typing import Any

from billing.imports.command import ImportCommand
from billing.imports.prices import PriceImporter


class Command(ImportCommand):
    help = "Take prices per metric and currency from a CSV file."
    epilog = """\
columns:
  metric        what is counted
  currency      ISO 4217 code: EUR
  unit_price    of one unit, up to 12 decimals
  valid_from    date or time (UTC unless it says otherwise); a price is valid until the metric's next one
  tax_category  as the tax service knows it (optional: standard)

example:
  metric,currency,unit_price,tax_category,valid_from
  compute.hours,EUR,0.0391,standard,2026-01-01

  manage.py import_prices prices.csv
"""

    def importer(self, options: dict[str, Any]) -> PriceImporter:
        return PriceImporter()
