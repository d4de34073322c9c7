"""Watching PyTorch programs: numbers that are not finite, bits that differ, streams that race."""
