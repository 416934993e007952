"""Several corpora, each with its share of the examples."""

from slimformer.corpus.mixing.mixture import Mixture, shares_by_size, shares_by_weight

__all__ = ["Mixture", "shares_by_size", "shares_by_weight"]
