"""What a method, a site and the server share: arrays, keys, asks and replies, states. It imports nothing of the rest."""
