"""What attention costs: FLOPs, bytes, regime and cache of any shape of attention."""
