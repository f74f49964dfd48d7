import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing.imports import importing
from billing.models import Customer, Price, UsageEvent
from tests.billing.making import make_customer, make_price, make_usage

FOCUS_SMALL = Path(__file__).parent / "focus_small.csv"
USAGE_HEADER = "key,customer,metric,subject,quantity,occurred_at\n"
Import = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.django_db


@pytest.fixture
def run_import(tmp_path: Path) -> Import:
    """Import a file, or text as a file, with a command; return its JSON report and its exit code as `exit`."""

    def imported(command: str, content: str | bytes | Path, *options: str) -> dict[str, Any]:
        path = content if isinstance(content, Path) else tmp_path / "rows.csv"
        if not isinstance(content, Path):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        out, code = io.StringIO(), 0
        try:
            call_command(command, str(path), "--json", *options, stdout=out, stderr=io.StringIO())
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        report: dict[str, Any] = json.loads(out.getvalue())
        return {"exit": code, **report}

    return imported


def counts(report: dict[str, Any]) -> tuple[int, int, int, int]:
    return report["taken"], report["known"], report["conflicting"], report["refused"]


def test_customers_are_taken_once(run_import: Import) -> None:
    rows = "code,name,email,currency,timezone\nA,Ann,a@example.com,EUR,Europe/Berlin\nB,Bob,b@example.com,JPY,\n"
    first = run_import("import_customers", rows)
    assert (counts(first), first["exit"]) == ((2, 0, 0, 0), 0)
    assert counts(run_import("import_customers", rows)) == (0, 2, 0, 0)
    assert Customer.objects.get(code="B").timezone == "UTC"


def test_problem_names_its_file(tmp_path: Path) -> None:
    path, err = tmp_path / "rows.csv", io.StringIO()
    path.write_text("code,name,email,currency\nA,Ann,nobody,EUR\n")
    with pytest.raises(SystemExit):
        call_command("import_customers", str(path), stdout=io.StringIO(), stderr=err)
    assert err.getvalue() == f"{path}: line 2 refused: email 'nobody' is not an email address\n"


def test_changed_customer_conflicts_and_stays_as_it_was(run_import: Import) -> None:
    header = "code,name,email,currency\n"
    run_import("import_customers", header + "A,Ann,a@example.com,EUR\n")
    report = run_import("import_customers", header + "A,Ann,other@example.com,EUR\n")
    assert (counts(report), report["exit"]) == ((0, 0, 1, 0), 3)
    assert report["problems"] == [
        {"line": 2, "verdict": "conflicting", "reason": "customer A is there with other content, which stays"}
    ]
    assert Customer.objects.get(code="A").email == "a@example.com"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",Ann,a@example.com,EUR,,", "code is empty"),
        ("A,Ann,nobody,EUR,,", "email 'nobody' is not an email address"),
        ("A,Ann,a@example.com,EURO,,", "currency: 'EURO' is not an ISO 4217 currency code"),
        ("A,Ann,a@example.com,EUR,Berlin,", "timezone 'Berlin' is not an IANA time zone"),
        ("A,Ann,a@example.com,EUR,localtime,", "timezone 'localtime' is not an IANA time zone"),  # of each machine
        ("A,Ann,a@example.com,EUR,,Germany", "country 'Germany' is not a country code"),
        ("A,Ann,a@example.com", "has 3 values, the header has 6 columns"),
        ("A,An\0n,a@example.com,EUR,,", "contains bytes that are not UTF-8 text"),
        ("A" * 201 + ",Ann,a@example.com,EUR,,", "code is longer than 200 characters"),
    ],
)
def test_bad_customer_is_refused_and_the_next_taken(run_import: Import, row: str, reason: str) -> None:
    report = run_import(
        "import_customers", f"code,name,email,currency,timezone,country\n{row}\nZ,Zoe,z@example.com,EUR,,\n"
    )
    assert (counts(report), report["exit"]) == ((1, 0, 0, 1), 3)
    assert report["problems"][0]["line"] == 2
    assert reason in report["problems"][0]["reason"]
    assert list(Customer.objects.values_list("code", flat=True)) == ["Z"]


def test_row_of_other_bytes_is_refused_alone(run_import: Import) -> None:
    rows = b"code,name,email,currency\nA,M\xfcller,a@example.com,EUR\nB,M\xc3\xbcller,b@example.com,EUR\n"
    report = run_import("import_customers", rows)
    assert counts(report) == (1, 0, 0, 1)
    assert Customer.objects.get().name == "Müller"


def test_prices_are_versions_and_never_change(run_import: Import) -> None:
    header = "metric,currency,unit_price,valid_from,tax_category\n"
    rows = header + "hours,EUR,0.10,2026-01-01,\nhours,EUR,0.12,2026-05-15T00:00:00+02:00,reduced\n"
    assert counts(run_import("import_prices", rows)) == (2, 0, 0, 0)
    assert counts(run_import("import_prices", rows.replace("0.10", "0.1000"))) == (0, 2, 0, 0)
    assert counts(run_import("import_prices", header + "hours,EUR,0.11,2026-01-01,\n")) == (0, 0, 1, 0)
    assert [(p.unit_price, p.valid_from, p.tax_category) for p in Price.objects.order_by("valid_from")] == [
        (Decimal("0.10"), datetime(2026, 1, 1, tzinfo=UTC), "standard"),
        (Decimal("0.12"), datetime(2026, 5, 14, 22, tzinfo=UTC), "reduced"),
    ]


@pytest.mark.parametrize(
    ("price", "reason"),
    [
        ("-1", "unit_price -1 is negative"),
        ("0.1234567890123", "unit_price 0.1234567890123 has more than 12 decimals"),
        ("1234567890123", "unit_price 1234567890123 has more than 12 digits before the point"),
        ("1e9999", "unit_price 1e9999 has more than 12 digits before the point"),
        ("NaN", "unit_price 'NaN' is not a number"),
        ("1_000", "unit_price '1_000' is not a number"),
        ("1,5", "has 5 values"),
    ],
)
def test_price_that_would_be_bent_is_refused(run_import: Import, price: str, reason: str) -> None:
    report = run_import("import_prices", f"metric,currency,unit_price,valid_from\nhours,EUR,{price},2026-01-01\n")
    assert counts(report) == (0, 0, 0, 1)
    assert reason in report["problems"][0]["reason"]


def test_date_of_a_price_that_is_none_is_refused_with_both_that_are(run_import: Import) -> None:
    report = run_import("import_prices", "metric,currency,unit_price,valid_from\nhours,EUR,1,01/01/2026\n")
    assert "'01/01/2026' is not a date or time such as 2026-05-31 or 2026-05-31T" in report["problems"][0]["reason"]


def test_usage_is_taken_once_however_it_is_written(run_import: Import) -> None:
    make_customer("A")
    make_price("hours")
    first = USAGE_HEADER + "k1,A,hours,vm-1,1.50,2026-05-02T10:00:00Z\nk2,A,hours,vm-1,2e0,2026-05-02T10:00:00Z\n"
    assert counts(run_import("import_usage", first)) == (2, 0, 0, 0)
    again = USAGE_HEADER + "k1,A,hours,vm-1,1.5,2026-05-02T12:00:00+02:00\nk2,A,hours,vm-1,2,2026-05-02T10:00:00Z\n"
    assert counts(run_import("import_usage", again)) == (0, 2, 0, 0)


def test_usage_of_years_ahead_that_no_run_would_ever_take_is_refused(run_import: Import) -> None:
    make_customer("A")
    make_price("hours")
    report = run_import("import_usage", USAGE_HEADER + "k1,A,hours,,1,2206-05-02T10:00:00Z\n")
    assert counts(report) == (0, 0, 0, 1)
    assert "2206-05-02T10:00:00+00:00 lies more than 2 years ahead" in report["problems"][0]["reason"]


def test_same_key_with_other_content_conflicts(run_import: Import) -> None:
    # billing 35: a retry with the same key is a repeat only if it says the same
    make_customer("A")
    make_price("hours")
    rows = USAGE_HEADER + "k1,A,hours,,1,2026-05-02T10:00:00Z\nk1,A,hours,,1,2026-05-02T10:00:00Z\n"
    assert counts(run_import("import_usage", rows + "k1,A,hours,,2,2026-05-02T10:00:00Z\n")) == (1, 1, 1, 0)
    assert UsageEvent.objects.get().quantity == 1


def test_unknown_customer_or_price_is_refused_with_its_row(run_import: Import) -> None:
    make_customer("A")
    make_price("hours", valid_from=datetime(2026, 5, 1, tzinfo=UTC))
    report = run_import(
        "import_usage",
        USAGE_HEADER
        + "k1,B,hours,,1,2026-05-02T10:00:00Z\n"
        + "k2,A,bytes,,1,2026-05-02T10:00:00Z\n"
        + "k3,A,hours,,1,2026-04-30T23:59:59Z\n"
        + "k4,A,hours,,1,2026-05-02T10:00:00\n"
        + "k5,A,hours,,1,2026-05-02T10:00:00Z\n",
    )
    assert (counts(report), report["exit"]) == ((1, 0, 0, 4), 3)
    assert [(p["line"], p["reason"]) for p in report["problems"]] == [
        (2, "customer 'B' is unknown; import it first"),
        (3, "there is no price for 'bytes' in EUR at 2026-05-02T10:00:00+00:00"),
        (4, "there is no price for 'hours' in EUR at 2026-04-30T23:59:59+00:00"),
        (5, "occurred_at 2026-05-02T10:00:00 has no offset from UTC; append Z or one such as +02:00"),
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_problem_names_the_line_on_which_an_editor_shows_the_row(run_import: Import, newline: str) -> None:
    rows = [
        "code,name,email,currency",
        '"A","Ann of',  # a quoted value over three lines
        "",
        'Aachen",a@example.com,EUR',
        "",  # passed over
        "B,Bob,nobody,EUR",
        'C,"Cleo, the ""first""",c@example.com,EUR',
        "D,Dan,nobody,EUR",
    ]
    report = run_import("import_customers", newline.join(rows))
    assert counts(report) == (1, 0, 0, 3)
    assert [problem["line"] for problem in report["problems"]] == [2, 6, 8]


def test_problems_that_the_file_and_the_database_have_come_in_the_order_of_the_file(
    run_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_customer("A")
    make_price("hours")
    monkeypatch.setattr("billing.imports.fields.decimal", lambda name, value, *_: Decimal(value))
    rows = [
        ("k1", "A", "1"),
        ("k1", "A", "2"),  # conflicts
        ("k2", "B", "1"),  # an unknown customer
        ("", "A", "1"),  # no key
        ("k4", "A", "1e30"),  # too large for the database
        ("k5", "A", "1"),
        ("k6", "B", "1"),
    ]
    lines = "".join(f"{key},{code},hours,,{quantity},2026-05-02T10:00:00Z\n" for key, code, quantity in rows)
    report = run_import("import_usage", USAGE_HEADER + lines)
    assert counts(report) == (2, 0, 1, 4)
    assert [problem["line"] for problem in report["problems"]] == [3, 4, 5, 6, 8]


def test_refused_rows_are_taken_once_their_customer_is_there(run_import: Import) -> None:
    make_price("hours")
    rows = USAGE_HEADER + "k1,A,hours,,1,2026-05-02T10:00:00Z\n"
    assert counts(run_import("import_usage", rows)) == (0, 0, 0, 1)
    make_customer("A")
    assert counts(run_import("import_usage", rows)) == (1, 0, 0, 0)


def test_file_over_many_batches_is_counted_row_by_row(run_import: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BATCH_ROWS", 7)
    customer = make_customer("A")
    make_price("hours")
    make_usage(customer, "k010", source="csv")
    rows = [f"k{n:03},A,hours,,{n},2026-05-02T10:00:00Z\n" for n in range(50)]
    rows[20] = "k020,A,hours,,many,2026-05-02T10:00:00Z\n"
    report = run_import("import_usage", USAGE_HEADER + "".join(rows) + rows[3])
    assert counts(report) == (48, 1, 1, 1)
    assert [p["line"] for p in report["problems"]] == [12, 22]


def test_row_that_only_the_database_can_refuse_does_not_stop_its_batch(
    run_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_customer("A")
    make_price("hours")
    monkeypatch.setattr("billing.imports.fields.decimal", lambda name, value, *_: Decimal(value))
    rows = "k1,A,hours,,1e30,2026-05-02T10:00:00Z\nk2,A,hours,,1,2026-05-02T10:00:00Z\n"
    report = run_import("import_usage", USAGE_HEADER + rows)
    assert counts(report) == (1, 0, 0, 1)
    assert "the database refused it: numeric field overflow" in report["problems"][0]["reason"]


def test_dry_run_reports_and_changes_nothing(run_import: Import) -> None:
    make_customer("A")
    make_price("hours")
    rows = USAGE_HEADER + "k1,A,hours,,1,2026-05-02T10:00:00Z\nk1,A,hours,,1,2026-05-02T10:00:00Z\n"
    report = run_import("import_usage", rows, "--dry-run")
    assert (counts(report), report["dry_run"]) == ((1, 1, 0, 0), True)
    assert not UsageEvent.objects.exists()


@pytest.mark.parametrize(
    ("encoding", "text", "reason"),
    [
        ("utf-8", "key;customer;metric;quantity\nk1;A;hours;1,5\n", "separated by semicolons: save it with commas"),
        ("utf-8", '"key"\t"customer"\n', "separated by tabs: save it with commas"),
        ("utf-16", "key,customer,metric,quantity,occurred_at\n", "not in UTF-8: save it as CSV UTF-8"),
    ],
)
def test_header_as_other_programs_save_it_is_told_apart_from_missing_columns(
    tmp_path: Path, encoding: str, text: str, reason: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding=encoding)
    with pytest.raises(CommandError, match=reason):
        call_command("import_usage", str(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is empty"),
        ("key,customer\n", "its header has no column metric, quantity, occurred_at"),
        ("key,customer,metric,quantity,occurred_at,key\n", "its header names a column twice"),
    ],
)
def test_file_without_its_columns_is_no_import(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(CommandError, match=reason):
        call_command("import_usage", str(path))


def test_misspelt_optional_column_is_told_and_others_are_taken(tmp_path: Path, run_import: Import) -> None:
    rows = "code,name,email,currency,time_zone,note\nA,Ann,a@example.com,EUR,Europe/Berlin,\n"
    report = run_import("import_customers", rows)
    assert (counts(report), report["exit"]) == ((1, 0, 0, 0), 0)
    assert report["ignored_columns"] == ["time_zone", "note"]
    err = io.StringIO()
    call_command("import_customers", str(tmp_path / "rows.csv"), stdout=io.StringIO(), stderr=err)
    assert "rows.csv: ignored, since it means nothing here: column 'time_zone', 'note'" in err.getvalue()
    make_customer("acct-1", currency="USD")
    assert run_import("import_usage", FOCUS_SMALL, "--format", "focus")["ignored_columns"] == []


def test_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"none\.csv cannot be imported: No such file or directory"):
        call_command("import_usage", str(tmp_path / "none.csv"))


def test_focus_rows_keep_their_cost_and_repeat_as_known(run_import: Import) -> None:
    for code in ("acct-1", "acct-2"):
        make_customer(code, currency="USD")
    first = run_import("import_usage", FOCUS_SMALL, "--format", "focus")
    assert counts(first) == (8, 1, 1, 3)
    assert {p["line"]: p["verdict"] for p in first["problems"]} == {
        10: "refused",  # BilledCost is NULL
        11: "refused",  # unknown customer
        12: "refused",  # EUR
        14: "conflicting",  # the charge of row 4 with another amount
    }
    assert counts(run_import("import_usage", FOCUS_SMALL, "--format", "focus")) == (0, 9, 1, 3)
    credit = UsageEvent.objects.get(amount__lt=-1)
    assert (credit.amount, credit.quantity, credit.metric) == (Decimal("-2.6137"), Decimal(0), "Compute, Hours")
    assert credit.occurred_at == datetime(2024, 9, 1, tzinfo=UTC)
    assert UsageEvent.objects.filter(amount=Decimal("0.000000000000001")).count() == 1


def test_negative_rows_are_refused_when_the_policy_says_so(run_import: Import) -> None:
    for code in ("acct-1", "acct-2"):
        make_customer(code, currency="USD")
    report = run_import("import_usage", FOCUS_SMALL, "--format", "focus", "--negative-rows", "refuse")
    assert [p["line"] for p in report["problems"] if "--negative-rows" in p["reason"]] == [5, 7]
    assert not UsageEvent.objects.filter(amount__lt=0).exists()


def test_tax_of_a_provider_is_no_usage_that_is_taxed_once_more(run_import: Import) -> None:
    make_customer("99", currency="USD")
    row = "{},USD,2024-09-01,Queue,99,{}\n"
    report = run_import(
        "import_usage",
        "BilledCost,BillingCurrency,ChargePeriodStart,ServiceName,SubAccountId,ChargeCategory\n"
        + row.format("1.90", "Tax")
        + row.format("10.00", "Usage"),
        *("--format", "focus"),
    )
    assert counts(report) == (1, 0, 0, 1)
    assert "it is a tax" in report["problems"][0]["reason"]
    assert UsageEvent.objects.get().amount == 10


def test_focus_customer_and_key_columns_can_be_named(run_import: Import) -> None:
    make_customer("99", currency="USD")
    rows = (
        "Id,BilledCost,BillingCurrency,ChargePeriodStart,ServiceName,BillingAccountId\n"
        "1,0.50,USD,2024-09-01 00:00:00,Queue,99\n2,0.50,USD,2024-09-01 00:00:00,Queue,99\n"
    )
    options = ("--format", "focus", "--customer-column", "BillingAccountId", "--key-column", "Id")
    assert counts(run_import("import_usage", rows, *options)) == (2, 0, 0, 0)


def test_quantities_that_differ_in_their_last_of_33_digits_conflict(run_import: Import) -> None:
    make_customer("A")
    row = "k,A,hours,,{},2026-05-02T10:00:00Z\n"
    make_price("hours")
    assert counts(run_import("import_usage", USAGE_HEADER + row.format("123456789012345678.123456789012345")))[0] == 1
    again = run_import("import_usage", USAGE_HEADER + row.format("123456789012345678.123456789012346"))
    assert counts(again) == (0, 0, 1, 0)


def test_quote_that_is_never_closed_does_not_swallow_the_next_row_silently(run_import: Import) -> None:
    report = run_import(
        "import_customers",
        'code,email,currency,name\nA,a@example.com,EUR,"A Ltd\nB,b@example.com,EUR,B Ltd\n',
    )
    assert counts(report) == (0, 0, 0, 1)
    assert "line break" in report["problems"][0]["reason"]


def test_columns_that_a_spreadsheet_left_without_a_name_are_passed_over(run_import: Import) -> None:
    report = run_import("import_customers", "code,name,email,currency,,\nA,Ann,a@example.com,EUR,,\n")
    assert (counts(report), report["ignored_columns"]) == ((1, 0, 0, 0), [])


@pytest.mark.parametrize("option", ["--source", "--tax-category"])
@pytest.mark.parametrize(("value", "reason"), [("x" * 101, "is longer than"), ("\udcff", "not UTF-8 text")])
def test_option_that_would_be_stored_as_something_else_is_wrong_usage(option: str, value: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as refused:
        call_command("import_usage", str(FOCUS_SMALL), "--format", "focus", option, value)
    assert refused.value.returncode == 2
