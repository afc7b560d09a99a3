"""The methods, one paper a file."""
