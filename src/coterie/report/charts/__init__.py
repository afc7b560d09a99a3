"""Charts, one topic a file: findings in, figures out. A chart without data is left out."""
