"""Sources of images: published data sets, image folders, CSV files, and a user's own function."""
