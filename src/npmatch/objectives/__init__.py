"""Divergences, losses and pseudo-label selection: pure functions and small stateful modules."""
