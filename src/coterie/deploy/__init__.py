"""A site of a real federation: what it answers, what may leave it, what it writes down."""
