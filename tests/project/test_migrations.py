"""What migrations may do to tables that have rows."""

from django.db.migrations import AddConstraint, AddField, AlterUniqueTogether, CreateModel
from django.db.migrations.loader import MigrationLoader
from django.db.models import UniqueConstraint


def test_unique_constraint_comes_with_its_table_where_no_duplicate_can_be_yet() -> None:
    # outbox B41
    """Added later, it would fail on the rows that are there, and somebody would have to choose between them."""
    seen = 0
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if app not in ("leases", "outbox", "billing"):
            continue
        created = {op.name.lower() for op in migration.operations if isinstance(op, CreateModel)}
        for operation in migration.operations:
            if (
                isinstance(operation, AlterUniqueTogether)
                or (isinstance(operation, AddConstraint) and isinstance(operation.constraint, UniqueConstraint))
                or (isinstance(operation, AddField) and operation.field.unique)
            ):
                seen += 1
                table = operation.name if isinstance(operation, AlterUniqueTogether) else operation.model_name
                assert table.lower() in created, f"{app} {name} makes {table} unique, which may have duplicates"
    assert seen
