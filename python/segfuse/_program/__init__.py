"""Programs: how they are written, value by value, and run on arrays."""
