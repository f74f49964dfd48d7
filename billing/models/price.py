from django.db import models


class Price(models.Model):
    """What one unit of a metric costs in a currency, from a moment until the next price of that metric.

    Never changed once it is there: a new price is a new row, and a line keeps the row it was rated with.
    """

    metric = models.CharField(max_length=300)
    currency = models.CharField(max_length=3)
    unit_price = models.DecimalField(max_digits=24, decimal_places=12)
    tax_category = models.CharField(max_length=30, default="standard")
    valid_from = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["metric", "currency", "valid_from"], name="billing_price_one_per_moment"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} {self.unit_price.normalize():f} {self.currency} from {self.valid_from:%Y-%m-%d}"
