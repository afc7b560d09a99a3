"""For anyone who writes a method: the contract battery, a fake engine, play."""
