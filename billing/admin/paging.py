"""Pages of a list that is never counted to its end."""

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.utils.functional import cached_property

if TYPE_CHECKING:
    PaginatorOfAnything = Paginator[Any]
else:
    PaginatorOfAnything = Paginator

#: Nobody leafs further; filters, search and dates lead to what lies behind.
MOST_ROWS = 10_000


class MoreThan(int):
    """A number of rows that goes on: it counts as what was counted and shows as `10,000+`."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(PaginatorOfAnything):
    """Counts up to MOST_ROWS rows and no further, where Django's own would read a whole table for its number."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        # In the order of the list, which an index has: so the rows of one run are found without those before it.
        found: int = rows[: MOST_ROWS + 1].count()
        return found if found <= MOST_ROWS else MoreThan(MOST_ROWS)
