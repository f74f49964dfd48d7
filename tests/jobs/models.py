"""What the test actors do, to be counted."""

from django.db import models


class Effect(models.Model):
    """One effect of one run; deliberately without a unique key, so that a second one shows."""

    name = models.CharField(max_length=100)
    pid = models.IntegerField()
    began_at = models.DateTimeField(null=True)
    done_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name
