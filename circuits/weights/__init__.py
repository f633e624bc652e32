"""What weights alone say of heads: OV and QK circuits, composition, copying, redundancy."""
