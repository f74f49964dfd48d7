"""Forms as strict as the imports."""

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms

from billing.imports import fields

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm


class StrictForm(ModelForm):
    """Reads some fields as the imports read their columns."""

    readers: dict[str, Callable[[str, str], str]] = {}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        for name, read in self.readers.items():
            if name in cleaned:
                try:
                    cleaned[name] = read(name, cleaned[name])
                except fields.Refused as refused:
                    self.add_error(name, str(refused))
        return cleaned


class CustomerForm(StrictForm):
    readers = {"currency": fields.currency, "timezone": fields.timezone, "country": fields.country}


class PriceForm(StrictForm):
    readers = {"currency": fields.currency}

    def clean_unit_price(self) -> Decimal:
        unit_price: Decimal = self.cleaned_data["unit_price"]
        if unit_price < 0:
            raise forms.ValidationError("A price is not negative.")
        return unit_price
