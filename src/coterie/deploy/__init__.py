"""What a site receives at the end of a study: bundles, which answer without a server and without the study."""
