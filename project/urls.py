from django.contrib import admin
from django.http import HttpResponse
from django.urls import path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("favicon.ico", lambda request: HttpResponse(status=204)),  # every browser asks for one
]
