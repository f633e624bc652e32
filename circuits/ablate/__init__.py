"""What a model's predictions lose when heads are removed: loss, perplexity, divergence."""
