"""The compiler of segfuse's CPU code, as a shared library. segfuse opens it; there is no API."""
