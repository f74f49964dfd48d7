import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import money
from billing.totals import totals

# The published numbers of 64 example invoices (EN 16931 and XRechnung): net per line and document-level allowance,
# and the totals their authors computed.
GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden_totals.json").read_text())
PUBLISHED_A_CENT_OFF = "xrechnung:01.06_minimal_test_ubl.xml"  # its own base times rate gives 757.40, it prints 757.41


@pytest.mark.parametrize("invoice", GOLDEN, ids=lambda invoice: invoice["source"])
def test_published_invoices_add_up_to_the_published_totals(invoice: dict[str, Any]) -> None:
    def minor(amount: str) -> int:
        return money.to_minor(Decimal(amount), invoice["currency"])

    if any(Decimal(net) != Decimal(minor(net)).scaleb(-2) for _, _, net in invoice["nets"]):
        pytest.fail("the golden file holds an amount finer than its currency")
    ours = totals((category, Decimal(rate or 0) / 100, minor(net)) for category, rate, net in invoice["nets"])

    off = 1 if invoice["source"] == PUBLISHED_A_CENT_OFF else 0
    published = {(category, Decimal(rate or 0) / 100): (minor(base), minor(tax) - off)
                 for category, rate, base, tax in invoice["subtotals"]}  # fmt: skip
    assert {(s.category, s.rate): (s.base_minor, s.tax_minor) for s in ours.subtotals} == published
    assert ours.net_minor == minor(invoice["net"])
    assert ours.tax_minor == minor(invoice["tax"]) - off
    assert ours.gross_minor == minor(invoice["gross"]) - off


def test_tax_is_taken_on_the_sum_not_per_line() -> None:
    # billing 71: ten lines of 3.60 at 5.5 % are 37.98, as one line of 36.00; rounded per line they would be 38.00
    ten = totals([("standard", Decimal("0.055"), 360)] * 10)
    assert ten.gross_minor == 3798
    assert ten == totals([("standard", Decimal("0.055"), 3600)])


def test_discount_line_does_not_move_a_cent() -> None:
    # billing 73
    assert totals([("standard", Decimal("0.19"), 850000), ("standard", Decimal("0.19"), -750000)]).gross_minor == 119000


def test_yen_invoice_has_no_decimals() -> None:
    # billing 77
    assert totals([("standard", Decimal("0.10"), 1127)]).gross_minor == 1240


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["standard", "reduced"]),
            st.sampled_from([Decimal("0.19"), Decimal("0.07"), Decimal("0.077")]),
            st.integers(-(10**9), 10**9),
        )
    ),
    st.randoms(use_true_random=False),
)
def test_order_of_lines_changes_nothing(lines: list[tuple[str, Decimal, int]], shuffled: random.Random) -> None:
    before = totals(lines)
    again = list(lines)
    shuffled.shuffle(again)
    assert totals(again) == before
    assert before.net_minor == sum(net for _, _, net in lines)
    assert before.tax_minor == sum(subtotal.tax_minor for subtotal in before.subtotals)
