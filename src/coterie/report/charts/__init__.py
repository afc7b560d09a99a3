"""The charts, one subject a file: findings in, figures out. A chart for which there is nothing to show is left out."""
