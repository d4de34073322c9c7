"""Functions over arrays as compiled programs: tracing, and derivatives of what is traced."""
