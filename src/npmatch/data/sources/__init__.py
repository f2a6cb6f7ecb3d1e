"""Where images come from: published data sets, folders, tables, a user's own function."""
