"""What the command line runs: data sets, models, mechanisms by name, and the training loop."""
