"""Studies on many processes or machines."""
