"""`manage.py import_customers FILE`"""

from typing import Any

from billing.imports.command import ImportCommand
from billing.imports.customers import CustomerImporter


class Command(ImportCommand):
    help = "Take customers from a CSV file."
    epilog = """\
columns:
  code      the customer's name in every other file
  name      as printed on invoices
  email     where invoices go
  currency  ISO 4217 code: EUR
  timezone  IANA name, its days make the periods (optional: UTC)
  country   ISO 3166-1 code, for the tax service (optional)

example:
  code,name,email,currency,timezone,country
  C00001,Amber Optics,billing@amber.example,EUR,Europe/Berlin,DE

  manage.py import_customers customers.csv
"""

    def importer(self, options: dict[str, Any]) -> CustomerImporter:
        return CustomerImporter()
