"""Known layers stacked over clients, forward and backward written out: nothing is mapped, and plain steps are taken in place."""
