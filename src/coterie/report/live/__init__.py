"""The live page: a study or a federation while it runs, in a browser on the same machine."""
