from django.apps import AppConfig
from django.db.models.signals import post_migrate


class LeasesConfig(AppConfig):
    name = "leases"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from leases import checks  # noqa: F401
        from leases.functions import make_missing

        post_migrate.connect(make_missing, sender=self, dispatch_uid="leases.functions")
