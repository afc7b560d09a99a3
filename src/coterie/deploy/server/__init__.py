"""The operator's side of a federation: runs, orders, checks of what sites send."""
