"""System checks of the billing settings."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from billing.conf import conf
from billing.errors import WrongSender
from billing.models import Series


@register()
def tax_timeout_fits_into_the_lease(**_: Any) -> list[CheckMessage]:
    default: timedelta = getattr(settings, "LEASES_TTL", timedelta(seconds=60))
    ttl = conf.LEASE_TTL or default
    if ttl / 3 > conf.TAX_TIMEOUT:
        return []
    return [
        Error(
            f"BILLING_TAX_TIMEOUT ({conf.TAX_TIMEOUT}) is not below a third of the lease's ttl ({ttl}).",
            hint=f"Set it below {ttl / 3}, so that a job notices a lost lease before its successor starts.",
            id="billing.E001",
        )
    ]


@register()
def tax_request_has_lines(**_: Any) -> list[CheckMessage]:
    if conf.TAX_LINES_PER_REQUEST >= 1:
        return []
    return [
        Error(
            f"BILLING_TAX_LINES_PER_REQUEST is {conf.TAX_LINES_PER_REQUEST}.",
            hint="Set it to at least 1.",
            id="billing.E002",
        )
    ]


@register()
def invoices_have_a_sender(**_: Any) -> list[CheckMessage]:
    from billing.documents.email import check_sender

    try:
        check_sender()
    except WrongSender as error:
        return [Error(f"{error}.", hint=f"Set {error.setting} to one address: billing@example.org.", id="billing.E003")]
    return []


@register()
def series_have_names(**_: Any) -> list[CheckMessage]:
    most = Series._meta.get_field("name").max_length or 0
    return [
        Error(
            f"BILLING_{name} is {series!r}, which cannot stand before a number.",
            hint=f"Set it to 1 to {most} printable characters: INV.",
            id="billing.E005",
        )
        for name, series in (("SERIES", conf.SERIES), ("CREDIT_SERIES", conf.CREDIT_SERIES))
        if not series.isprintable() or series != series.strip() or not 1 <= len(series) <= most
    ]


@register()
def tax_service_has_an_address(**_: Any) -> list[CheckMessage]:
    from billing.tax import is_address

    if is_address(conf.TAX_URL):
        return []
    return [
        Error(
            f"BILLING_TAX_URL is {conf.TAX_URL!r}, which is no http address.",
            hint="Set BILLING_TAX_URL to where the tax service answers: https://tax.example.org.",
            id="billing.E004",
        )
    ]
