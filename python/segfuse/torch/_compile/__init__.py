"""The backend of `torch.compile`: graphs of ATen operations as compiled programs."""
