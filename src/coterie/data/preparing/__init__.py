"""Preparing tables: text columns become indicators, gaps are filled, numbers are brought to one scale; and the same again at prediction."""
