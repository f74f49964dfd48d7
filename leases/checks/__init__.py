"""System checks: what makes leases or fences weaker than they look, each with something to type or change.

`manage.py check` runs those that need no server; `check --database default` and `migrate` those that ask PostgreSQL;
`check --deploy` those that ask Redis; `manage.py leases doctor` all of them. All have the tag `leases`.
"""

from leases.checks import databases, fenced_models, jobs, redis_server, settings

__all__ = ["databases", "fenced_models", "jobs", "redis_server", "settings"]

TAG = "leases"
