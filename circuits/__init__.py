"""What heads do: kinds, scores, labels with their nulls, the atlas and the command line."""
