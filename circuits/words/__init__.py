"""What heads do between words: syntax and coreference, scored at the level of whole words."""
