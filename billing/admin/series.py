from django.contrib import admin

from billing.admin.inspecting import Inspector
from billing.models import Series


@admin.register(Series)
class SeriesAdmin(Inspector):
    list_display = ["name", "next_number"]
    ordering = ["name"]
