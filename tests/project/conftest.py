from tests.project.checkouts import checkout

__all__ = ["checkout"]
