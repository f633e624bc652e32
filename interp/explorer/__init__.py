"""One offline page to look at the heads of a model on a text."""
