from .families import whole

__all__ = ["whole"]
