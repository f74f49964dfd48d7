"""Who did what in the admin, in one list."""

from django.contrib import admin
from django.contrib.admin.models import LogEntry

from billing.admin.inspecting import Inspector


@admin.register(LogEntry)
class LogEntryAdmin(Inspector):
    list_display = ["action_time", "user", "content_type", "object_repr", "message"]
    list_select_related = ["user", "content_type"]
    ordering = ["-id"]
    fields = ["action_time", "user", "content_type", "object_id", "object_repr", "message"]

    @admin.display(description="what")
    def message(self, entry: LogEntry) -> str:
        return f"{entry.get_action_flag_display()}: {entry.get_change_message()}".rstrip(": ")
