"""A site's side of a federation: policy, permission, privacy, audit, and the answers to asks."""
