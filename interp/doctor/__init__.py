"""Whether this toolkit sees a model faithfully: one report of what was measured."""
