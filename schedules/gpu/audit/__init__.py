"""What a scheduled launch asks of a GPU, read from the program."""
