"""The vectorised route: any module, stacked over clients."""
