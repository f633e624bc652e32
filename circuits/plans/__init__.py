"""Plans: many models, checkpoints, prompts and lengths in one run that survives its end."""
