"""One typed configuration: its tree, the recipes, the defaults that follow from a user's images."""
