from django.db import models


class Customer(models.Model):
    """Who is invoiced: one currency, one time zone, one address for mail.

    Issued invoices carry their own copy of what they print, so a change here changes no document.
    """

    class Status(models.TextChoices):
        ACTIVE = "active"
        CLOSED = "closed"  # planned only while usage is left to invoice

    code = models.CharField(max_length=200, unique=True)
    name = models.CharField(max_length=500)
    email = models.EmailField(max_length=320)
    currency = models.CharField(max_length=3)
    timezone = models.CharField(max_length=64, default="UTC", help_text="IANA name; periods are days of this zone.")
    country = models.CharField(max_length=2, blank=True, help_text="ISO 3166-1 alpha-2, for the tax service.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ACTIVE)

    def __str__(self) -> str:
        return f"{self.code} ({self.name})"
