"""Terms: named, weighted parts of an objective, registered in `slimformer.registry.TERMS`."""

from slimformer.objectives.terms.term import BlockTerm, Mean, Models, Term, count_examples, count_tokens, token_mask

__all__ = ["BlockTerm", "Mean", "Models", "Term", "count_examples", "count_tokens", "token_mask"]
