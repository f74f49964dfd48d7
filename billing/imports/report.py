"""What became of the rows of a file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from billing.wording import counted

MAX_PROBLEMS_KEPT = 1000


class Verdict(StrEnum):
    TAKEN = "taken"
    KNOWN = "known"  # same key, same content: taken before
    CONFLICTING = "conflicting"  # same key, other content: what was there stays
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that needs a person; `line` is the one of the file on which it begins, the header being line 1."""

    line: int
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"line {self.line} {self.verdict}: {self.reason}"


@dataclass
class Report:
    """Counts every row once; keeps the first problems and passes each to `on_problem` as it shows."""

    on_problem: Callable[[Problem], None] = lambda problem: None
    counts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    problems: list[Problem] = field(default_factory=list)
    #: That mean nothing here; one may be a misspelt optional one.
    ignored_columns: list[str] = field(default_factory=list)

    def add(self, line: int, verdict: Verdict, reason: str = "") -> None:
        self.counts[verdict] += 1
        if verdict in (Verdict.CONFLICTING, Verdict.REFUSED):
            problem = Problem(line, verdict, reason)
            if len(self.problems) < MAX_PROBLEMS_KEPT:
                self.problems.append(problem)
            self.on_problem(problem)

    @property
    def clean(self) -> bool:
        return not (self.counts[Verdict.CONFLICTING] or self.counts[Verdict.REFUSED])

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')}: " + ", ".join(
            f"{count} {verdict}" for verdict, count in self.counts.items()
        )

    def as_json(self) -> dict[str, Any]:
        shown = [{"line": p.line, "verdict": p.verdict.value, "reason": p.reason} for p in self.problems]
        counts = {verdict.value: count for verdict, count in self.counts.items()}
        return {
            "rows": self.rows,
            **counts,
            "problems": shown,
            "problems_not_shown": self._not_shown,
            "ignored_columns": self.ignored_columns,
        }

    @property
    def _not_shown(self) -> int:
        return self.counts[Verdict.CONFLICTING] + self.counts[Verdict.REFUSED] - len(self.problems)
