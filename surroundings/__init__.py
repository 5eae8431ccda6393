"""What a program takes from where it is started: descriptors, streams, signals, variables, folders. The standard
library alone; every other package may import it."""
