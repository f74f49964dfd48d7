"""Why a customer could not be invoiced, one class per cause; the sentence is what the item's reason shows."""

from datetime import timedelta

from billing.wording import counted


class BillingError(Exception):
    """Base of what this app raises about one customer's invoice."""


class BrokerUnavailable(BillingError):
    """The broker did not take a message; the item is there, and the rescuer enqueues it once the broker answers."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the broker does not answer ({cause}); the rescuer will enqueue what it was not given")


class NeedsPerson(BillingError):
    """Trying again cannot help: the item is parked until somebody has done what the sentence says."""


class TryAgain(BillingError):
    """It may well work later: the item has failed for now and is enqueued again, not before `retry_after`."""

    retry_after: timedelta | None = None


class InvalidCustomer(NeedsPerson):
    """The customer's time zone or currency does not exist, so nothing of it can be billed."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}; correct the customer, then bill again")


class UnpricedUsage(NeedsPerson):
    """Some usage has no price at its time."""

    def __init__(self, metric: str, currency: str, count: int) -> None:
        self.metric = metric
        self.currency = currency
        self.count = count
        super().__init__(
            f"{counted(count, 'usage event')} of {metric!r} without a price in {currency}; import the price, "
            "then bill again"
        )


class OtherCurrency(NeedsPerson):
    """Some usage arrived with amounts in a currency that is not the customer's."""

    def __init__(self, currency: str, expected: str, count: int) -> None:
        self.currency = currency
        self.expected = expected
        self.count = count
        super().__init__(
            f"{counted(count, 'usage event')} with amounts in {currency}, the customer is invoiced in {expected}; "
            "correct the customer's currency or the usage, then bill again"
        )


class NegativeTotal(NeedsPerson):
    """Credits exceed charges, and an invoice cannot be negative."""

    def __init__(self, total: str) -> None:
        self.total = total
        super().__init__(
            f"the usage adds up to {total}, and an invoice cannot be negative; bill a longer period that outweighs it, "
            "or pay it back by other means"
        )


class AmountTooLarge(NeedsPerson):
    """An amount is so large that it cannot be stored, which is no amount that anybody owes."""

    def __init__(self, what: str, amount: str) -> None:
        self.what = what
        self.amount = amount
        super().__init__(
            f"{what} comes to {amount}, which is too large to be meant; correct the usage or the price, then bill again"
        )


class PeriodOverlaps(NeedsPerson):
    """Another live invoice of the customer covers part of the period."""

    def __init__(self, period: str, other: str, other_period: str) -> None:
        self.period = period
        self.other = other
        self.other_period = other_period
        super().__init__(
            f"{period} overlaps {other_period}, which invoice {other} covers; void that invoice or bill the rest"
        )


class Unmailable(NeedsPerson):
    """No email can be made for the customer, so the invoice is not issued either."""

    def __init__(self, address: str, cause: str) -> None:
        self.address = address
        super().__init__(f"no email can be sent to {address!r} ({cause}); correct the customer, then bill again")


class WrongSender(TryAgain):
    """The configured sender of invoices is no address: nobody's mail can be made, and that is no customer's fault."""

    def __init__(self, setting: str, cause: str) -> None:
        self.setting = setting
        super().__init__(f"{setting} cannot be the sender of invoices ({cause}); correct it and restart the workers")


class TaxRejected(NeedsPerson):
    """The tax service will not answer this question however often it is asked."""

    def __init__(self, document: str, status: int, answer: str) -> None:
        self.document = document
        self.status = status
        self.answer = answer
        super().__init__(
            f"the tax service rejects {document} ({status}: {answer}); correct the customer or price, then bill again"
        )


class TaxUnavailable(TryAgain):
    """The tax service was not reached, or said that it cannot answer now."""

    def __init__(self, document: str, cause: str, *, retry_after: timedelta | None = None) -> None:
        self.document = document
        self.cause = cause
        self.retry_after = retry_after
        super().__init__(f"the tax service is not available ({cause}); it will be asked again")


class TaxUnknown(TryAgain):
    """The question was sent and no answer came; asked again under the same document it means the same."""

    def __init__(self, document: str, cause: str) -> None:
        self.document = document
        self.cause = cause
        super().__init__(f"the tax service did not answer ({cause}); it will be asked again about the same document")


class TaxAnswerInvalid(BillingError):
    """The answer leaves out a line or is no tax rate; nothing is assumed in its place."""

    def __init__(self, document: str, detail: str) -> None:
        self.document = document
        self.detail = detail
        super().__init__(f"the tax service answered {document} wrongly: {detail}")


class KeepsChanging(TryAgain):
    """The usage of the period, or the customer, was different at every attempt to issue it."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        super().__init__(
            f"the usage or the customer changed during each of {counted(attempts, 'attempt')}; it will be tried again"
        )


class ItemConcluded(BillingError):
    """The item's outcome does not allow what was asked; nothing was changed."""

    def __init__(self, outcome: str, advice: str) -> None:
        self.outcome = outcome
        super().__init__(f"it is {outcome.lower()}; {advice}")


class AlreadyVoid(BillingError):
    """An invoice was to be taken back that is; there is one credit note, and it stays as it is."""

    def __init__(self, note: str) -> None:
        self.note = note
        super().__init__(f"it was taken back by {note} before")


class InvoiceIsVoid(BillingError):
    """A mail about a void invoice was asked for; what the customer gets instead is the credit note."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(f"{reference} is void, and its mail is not sent any more")


class MailOnItsWay(BillingError):
    """Another copy was asked for before the earlier ones had gone out."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(f"the last mail about it is {state} and will go out by itself; nothing was sent again")


class CopyExists(BillingError):
    """That copy was published meanwhile, to another address."""

    def __init__(self, copy: int) -> None:
        self.copy = copy
        super().__init__(f"copy {copy} was sent meanwhile, to another address; look at the invoice's mails")


class TooManyCopies(BillingError):
    """The invoice was mailed as often as it may be."""

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"it was sent again {most} times already; send it by other means")
