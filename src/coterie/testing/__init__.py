"""For authors of methods: the contract battery, a fake engine, play."""
