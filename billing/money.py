"""Money as integer minor units with the currency's ISO 4217 exponent. Pure: no database, no settings."""

from decimal import ROUND_HALF_UP, Context, Decimal

#: The largest amount that can be stored, in minor units.
MOST_MINOR = 2**63 - 1

# Products of a 33-digit quantity and a 24-digit price are exact here; the default context would round them to 28.
_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)

_CODES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: """AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF
    CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR
    ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR
    MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN
    SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG""",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_EXPONENTS = {code: exponent for exponent, codes in _CODES.items() for code in codes.split()}


class UnknownCurrency(ValueError):
    """The code is not an ISO 4217 currency in circulation; correct the customer, price or usage that names it."""

    def __init__(self, currency: str) -> None:
        self.currency = currency
        super().__init__(f"{currency!r} is not an ISO 4217 currency code; use one such as EUR, USD or JPY")


def exponent(currency: str) -> int:
    """Return how many decimals an amount in `currency` has (EUR 2, JPY 0, KWD 3); raise `UnknownCurrency`."""
    try:
        return _EXPONENTS[currency]
    except KeyError:
        raise UnknownCurrency(currency) from None


def to_minor(amount: Decimal, currency: str) -> int:
    """Round an exact amount half up (away from zero) to the minor units of `currency`: 0.125 EUR is 13."""
    shifted = amount.scaleb(exponent(currency), _EXACT)
    return int(shifted.quantize(Decimal(1), context=_EXACT))


def line_net_minor(quantity: Decimal, unit_price: Decimal, currency: str) -> int:
    """Return quantity x price, rounded once; the price may be finer than the currency (0.0000004 USD)."""
    return to_minor(_EXACT.multiply(quantity, unit_price), currency)


def exact_sum(left: Decimal, right: Decimal) -> Decimal:
    """Add without rounding; the default context would keep 28 digits."""
    return _EXACT.add(left, right)


def exact_text(number: Decimal) -> str:
    """Return the number without trailing zeros or exponent, all its digits kept; the default context would keep 28."""
    return f"{number.normalize(_EXACT):f}"


def tax_minor(base_minor: int, rate: Decimal) -> int:
    """Return the tax on a summed base at `rate` (a fraction: 0.19), rounded once half up. Source: EN 16931 BR-CO-17."""
    return int(_EXACT.multiply(Decimal(base_minor), rate).quantize(Decimal(1), context=_EXACT))


def format_minor(amount_minor: int, currency: str) -> str:
    """Return the amount for people, with the currency's own decimals: `EUR 1,234.50`, `JPY 1,240`, `EUR -0.05`."""
    places = exponent(currency)
    return f"{currency} {Decimal(amount_minor).scaleb(-places, _EXACT):,.{places}f}"
