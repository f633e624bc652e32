"""Load a model, hook its attention, capture and edit what flows through it, look at it."""
