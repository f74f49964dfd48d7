"""Searches that an index answers: one after the other, the first that finds something."""

import re
from typing import TYPE_CHECKING, Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest

from billing.admin.inspecting import FastAdmin

if TYPE_CHECKING:
    Base = FastAdmin
else:
    Base = object

_REFERENCE = re.compile(r"(.{1,20})-(\d{1,18})", re.ASCII)


class IndexedSearch(Base):
    """Looks for the beginning of a customer's code, unless `searches` says otherwise.

    One after the other, because no index serves "this or that" over two tables.
    """

    search_fields = ["customer__code"]
    search_help_text = "The beginning of a customer's code."

    def searches(self, term: str) -> list[Q]:
        """Return what the term may mean, the most exact first."""
        return [Q(customer__code__startswith=term)]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        *exact, last = self.searches(term)
        found = (queryset.filter(search) for search in exact if queryset.filter(search).exists())
        return next(found, queryset.filter(last)), False


class NumberSearch(IndexedSearch):
    """Looks for a document's number as it is printed (INV-000042), else for the beginning of a customer's code."""

    search_help_text = "A printed number, or the beginning of a customer's code."

    def searches(self, term: str) -> list[Q]:
        match = _REFERENCE.fullmatch(term)
        numbered = [Q(series=match[1], number=int(match[2]))] if match else []
        return [*numbered, *super().searches(term)]
