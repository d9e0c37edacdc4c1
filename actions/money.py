"""Amounts of money between a currency's main unit and its minor one (ISO 4217)."""

from __future__ import annotations

from decimal import Decimal

_WITHOUT_MINOR_UNIT = frozenset("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split())
_WITH_THOUSANDTHS = frozenset("BHD IQD JOD KWD LYD OMR TND".split())


def minor_digits(currency: str) -> int:
    """How many digits the minor unit of a currency takes; 2 where the currency is not known."""
    if currency.upper() in _WITHOUT_MINOR_UNIT:
        return 0
    return 3 if currency.upper() in _WITH_THOUSANDTHS else 2


def from_minor(amount: Decimal | int, currency: str) -> Decimal:
    """Cents and the like in the main unit, exactly: 12000 EUR are 120.00."""
    return Decimal(amount).scaleb(-minor_digits(currency))


def to_minor(amount: Decimal, currency: str) -> Decimal:
    """The main unit in cents and the like, exactly; with a fraction where the amount is finer than the unit."""
    return amount.scaleb(minor_digits(currency)).normalize() + 0
