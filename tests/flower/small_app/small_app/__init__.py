"""A Flower app on six small clients, for simulations and for SuperNodes."""
