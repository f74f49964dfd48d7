from decimal import Decimal

import pytest

from billing import money


@pytest.mark.parametrize(
    ("currency", "exponent"), [("EUR", 2), ("USD", 2), ("JPY", 0), ("CLP", 0), ("KWD", 3), ("TND", 3), ("CLF", 4)]
)
def test_exponent_is_the_currencys_own(currency: str, exponent: int) -> None:
    assert money.exponent(currency) == exponent


@pytest.mark.parametrize("currency", ["", "eur", "XXX", "EURO"])
def test_unknown_currency_is_named(currency: str) -> None:
    with pytest.raises(money.UnknownCurrency) as raised:
        money.exponent(currency)
    assert raised.value.currency == currency


@pytest.mark.parametrize(
    ("amount", "currency", "minor"),
    [
        ("0.125", "EUR", 13),  # half even would give 12
        ("-0.125", "EUR", -13),
        ("0.135", "EUR", 14),
        ("0.1249999999999999999999999999", "EUR", 12),
        ("27.5", "JPY", 28),
        ("4.4999", "JPY", 4),
        ("0.0005", "KWD", 1),
        ("0.00004", "CLF", 0),
        ("-2.61370000000", "USD", -261),
        ("123456789012345678.005", "USD", 12345678901234567801),  # beyond the 28 digits of the default context
        ("999999999999999999.004999999999999", "USD", 99999999999999999900),
    ],
)
def test_amounts_round_half_up_once(amount: str, currency: str, minor: int) -> None:
    assert money.to_minor(Decimal(amount), currency) == minor


@pytest.mark.parametrize(
    ("quantity", "unit_price", "currency", "minor"),
    [
        ("2000000", "0.0000004", "USD", 80),  # billing 83: one by one each of the million lines would be 0.00
        ("1000", "4.5", "JPY", 4500),  # billing 80: the price is finer than the currency
        ("3", "0.335", "EUR", 101),
        ("1", "0.005", "EUR", 1),
        ("0.123456789012345", "0.000000000001", "EUR", 0),
        ("123456789012345678.123456789012345", "99999.123456789012", "USD", 1234557068602430866282780),
    ],
)
def test_line_is_exact_until_its_one_rounding(quantity: str, unit_price: str, currency: str, minor: int) -> None:
    assert money.line_net_minor(Decimal(quantity), Decimal(unit_price), currency) == minor


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (123450, "EUR", "EUR 1,234.50"),
        (1240, "JPY", "JPY 1,240"),  # billing 77, 78: no decimals, no factor of 100
        (1240, "KWD", "KWD 1.240"),
        (-5, "USD", "USD -0.05"),
        (0, "USD", "USD 0.00"),
        (12345678901234567890123456789012, "USD", "USD 123,456,789,012,345,678,901,234,567,890.12"),
    ],
)
def test_amount_is_shown_with_the_currencys_decimals(minor: int, currency: str, text: str) -> None:
    assert money.format_minor(minor, currency) == text
