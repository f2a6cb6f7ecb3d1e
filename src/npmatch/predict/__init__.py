"""A trained model in use: load, predict, save, export, publish."""
