"""The page of a run: try an image, label the ones the model is unsure of, watch the figures."""
