"""Several models on the same data: what each is worth and what it costs, measured in turns."""

from slimformer.inference.comparison.comparing import Budgets, Comparison, Row, compare

__all__ = ["Budgets", "Comparison", "Row", "compare"]
